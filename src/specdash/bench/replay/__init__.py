"""A recorded session of an agent, asked again call by call."""
