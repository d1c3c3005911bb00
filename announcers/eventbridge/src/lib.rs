//! Stub: to be written.
