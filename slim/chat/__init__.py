"""Chat: from a conversation to a prompt, and from the model's text back to answer, reasoning and tool calls. Pure."""
