"""Evidence to attribution: why an attempt ended, where that began, and which explanations were beaten. Pure."""
