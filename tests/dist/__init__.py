"""What is released, installed as users install it."""
