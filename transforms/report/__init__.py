"""Pages and pictures, made only of views: nothing here sees more than what is published."""
