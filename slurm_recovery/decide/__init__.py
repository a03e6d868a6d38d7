"""From attribution, policy and history to a decision. Pure."""
