"""The one exception that means "the user can mend this": programs print its line and exit with code 2."""


class UserError(ValueError):
    """A mistake in the input: one line that names the file or field, what was found and what would be right."""
