"""What each model architecture is and needs."""
