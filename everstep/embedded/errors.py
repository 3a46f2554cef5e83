"""What can go wrong with the embedded stack. Every message says what to do about it."""


class StackError(Exception):
    """The embedded stack cannot do what was asked; the message is meant for the person at the keyboard."""
