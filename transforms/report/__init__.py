"""Pages and pictures made of views (`schemas.views`) alone. Pure."""
