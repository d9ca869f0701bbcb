"""What callers may send (pydantic) and what they get back (msgspec); nothing here computes."""
