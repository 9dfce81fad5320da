//! Derivative masks.

/// The axes along which the weight function is differentiated.
pub type Mask = [bool; 3];

/// The mask of the undifferentiated weight.
pub(crate) const VALUE: Mask = [false; 3];
