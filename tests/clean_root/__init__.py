"""What is released, in a system that has nothing else; tools/test-dist runs these."""
