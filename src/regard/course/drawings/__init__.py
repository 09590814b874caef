"""Pictures of single steps for the documentation: a module a picture, with `draw(axes, result, language)`."""
