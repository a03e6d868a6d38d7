"""Log lines to evidence: signatures (rows in signatures.d), frames (who printed a line), the scanner. Pure."""
