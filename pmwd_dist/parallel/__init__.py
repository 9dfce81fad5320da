"""Arrays divided over devices: decompositions, communication backends, transforms, halos."""
