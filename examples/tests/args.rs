//! Runs the tests inside `squad_4node/args.rs`: a program among the examples has no test run of its own.

#![expect(dead_code, reason = "the program uses what the tests do not")]

#[path = "../squad_4node/args.rs"]
mod args;
