"""A client of Loquent, written from the text of spec/ alone. Keep it so: do not read crates/ or web/ for it.

It shows that the text suffices, finds where the server departs from it, and is what an author of a
client in another language reads. In the order of reading: `wire` (bytes), `receiver` (one answer's
log), `messages` and `session` (QUIC), `webtransport` (the same for browsers), `events` (the same
over HTTP) and `chunks` (from records to OpenAI's chunks).
"""
