"""The binary of Loquent for Python environments: `loquent` on the path, or `python -m loquent`."""
