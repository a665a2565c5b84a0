//! Runs the tests inside `squad_4node/args.rs`: a program among the examples has no test run of its own.

#[path = "../squad_4node/args.rs"]
mod args;
