"""Programs with in-place writes, views, aliasing and custom autograd functions, compared with eager."""
