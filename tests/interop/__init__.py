"""Loquent's protocol held against an independent client. `client/` was written from the text of spec/ alone."""
