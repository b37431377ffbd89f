"""thunder as a backend of torch.compile, and `thunderfx`."""
