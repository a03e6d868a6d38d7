"""srecover: what people type. Each command is one file, imported when it is called."""
