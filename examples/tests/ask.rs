//! Runs the tests inside `ask/show.rs`: a program among the examples has no test run of its own.

/// What `show` uses of the answerer.
mod answerer {
    #[allow(dead_code, reason = "the text is for JSON")]
    pub(crate) struct Found {
        pub(crate) text: String,
        pub(crate) confidence: f64,
        pub(crate) place: Option<(usize, usize)>,
    }
}

#[path = "../ask/show.rs"]
#[allow(dead_code, reason = "the program uses the rest")]
mod show;
