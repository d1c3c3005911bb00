//! Simulation.
#[test]
fn x() {}
