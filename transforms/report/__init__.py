"""Pages and pictures, made of views alone: nothing here sees more than what is published."""
