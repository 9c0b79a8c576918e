"""The command line: one file per command. A command imports its parts inside its function, so that --help is instant."""
