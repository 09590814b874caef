"""Pictures of single steps for the documentation: a module for each, with `draw(axes, result, language)`.

The folder is flat: `figures.py` imports the module that has the name of the `Drawing`, and the lab has a script of the
same name for each, so a picture is found by one name everywhere.
"""
