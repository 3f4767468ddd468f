"""The commands, each a function that hands its words to one program."""
