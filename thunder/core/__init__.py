"""Base types, the intermediate representation, and the passes over it."""
