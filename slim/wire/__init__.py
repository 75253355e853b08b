"""JSON on one side, frozen records on the other: OpenAI's shapes no more. Pure: no trio, no HTTP, no engine."""
