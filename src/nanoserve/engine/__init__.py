"""The step loop and its bridge to asyncio. No torch, no HTTP."""
