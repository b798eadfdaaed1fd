"""The HTTP front: OpenAI's wire format in, engine requests out."""
