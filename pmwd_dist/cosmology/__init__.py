"""Expansion, growth and linear power: they know no mesh."""
