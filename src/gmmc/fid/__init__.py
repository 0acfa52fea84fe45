"""Feature networks and distances between sets of images: FID, KID, precision and recall."""
