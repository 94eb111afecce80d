//! Tables of states and commands.
