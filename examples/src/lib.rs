//! Shared code of the azulejo example programs.
