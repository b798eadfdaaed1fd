"""The transformer: layers, rotary embedding and the decoder."""
