//! The command line: `run_qa.py`'s flags with their names, defaults and meaning, and a few of our own.
//!
//! Three groups. What [`Args`] holds is **implemented**. [`NO_EFFECT`] is accepted: flags that ask for what happens
//! anyway pass silently, the others with one warning that says why nothing changes. [`REFUSED`] cannot be honoured;
//! such a flag is an error with its reason, unless its value switches it off. `examples/docs/run_qa_flags.md` lists all
//! three. Anything else is an error that suggests the nearest flag. Hyphens and underscores, `--flag`, `--flag True` and `--flag=false`, unambiguous prefixes, and one
//! JSON file that holds all arguments work as they do there.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use azulejo_bert::schedule::Schedule;
use azulejo_collectives::launch::LARGEST_WORLD;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, Parser, ValueEnum};

#[path = "flags.rs"]
mod flags;

use flags::{NO_EFFECT, REFUSED};

/// Fine-tunes BERT or DistilBERT for question answering on CPUs.
///
/// Without arguments: four "nodes" of two processes on this machine train, evaluate and save a small model on built-in
/// data. With `run_qa.py`'s flags: the same on real data and weights. Started by mpirun, torchrun, a PyTorchJob or srun
/// the program is one of the job's workers.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "squad_4node",
    rename_all = "snake_case",
    version,
    infer_long_args = true,
    args_override_self = true,
    max_term_width = 120,
    override_usage = "squad_4node [FLAGS]\n       squad_4node ARGUMENTS.json"
)]
pub(crate) struct Args {
    /// Folder with config.json, the weights and the vocabulary, in Hugging Face's layout, or a model's name on the Hub
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub(crate) model_name_or_path: Option<PathBuf>,
    /// Folder or file of the model's configuration, if it is not in the model's folder
    #[arg(long, value_name = "PATH", help_heading = "Model")]
    pub(crate) config_name: Option<PathBuf>,
    /// Folder of the tokenizer, if it is not the model's
    #[arg(long, value_name = "PATH", help_heading = "Model")]
    pub(crate) tokenizer_name: Option<PathBuf>,

    /// Branch, tag or commit of a model on the Hub
    #[arg(long, value_name = "NAME", default_value = "main", help_heading = "Model")]
    pub(crate) model_revision: String,
    /// Folder that keeps what comes from the Hub, instead of HF_HUB_CACHE
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Token for the Hub, instead of HF_TOKEN
    #[arg(long, value_name = "TOKEN", help_heading = "Model")]
    pub(crate) token: Option<String>,

    /// Name of a data set on the Hub
    #[arg(long, value_name = "NAME", help_heading = "Data")]
    pub(crate) dataset_name: Option<String>,
    /// Configuration of that data set
    #[arg(long, value_name = "NAME", help_heading = "Data")]
    pub(crate) dataset_config_name: Option<String>,
    /// Training data in SQuAD's format
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub(crate) train_file: Option<PathBuf>,
    /// Evaluation data in SQuAD's format
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub(crate) validation_file: Option<PathBuf>,
    /// Data to predict answers for
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub(crate) test_file: Option<PathBuf>,
    /// Threads that prepare the data
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Data")]
    pub(crate) preprocessing_num_workers: Option<usize>,
    /// Longest window in tokens: question, context and special tokens
    #[arg(
        long,
        value_name = "N",
        value_parser = positive,
        default_value = "384",
        help_heading = "Data"
    )]
    pub(crate) max_seq_length: usize,
    /// Tokens that neighbouring windows of a long context share
    #[arg(long, value_name = "N", value_parser = whole, default_value = "128", help_heading = "Data")]
    pub(crate) doc_stride: usize,
    /// Use the first N training samples only
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Data")]
    pub(crate) max_train_samples: Option<usize>,
    /// Use the first N evaluation samples only
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Data")]
    pub(crate) max_eval_samples: Option<usize>,
    /// Use the first N samples to predict only
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Data")]
    pub(crate) max_predict_samples: Option<usize>,
    /// Some questions have no answer (SQuAD 2)
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Data")]
    pub(crate) version_2_with_negative: bool,
    /// How much better than the best answer "no answer" must be to win
    #[arg(long, value_name = "X", value_parser = finite, default_value = "0", help_heading = "Data")]
    pub(crate) null_score_diff_threshold: f64,
    /// Answers to keep for a question
    #[arg(long, value_name = "N", value_parser = positive, default_value = "20", help_heading = "Data")]
    pub(crate) n_best_size: usize,
    /// Longest answer in tokens
    #[arg(long, value_name = "N", value_parser = positive, default_value = "30", help_heading = "Data")]
    pub(crate) max_answer_length: usize,
    /// Move answers that do not stand at their answer_start to the nearest place where they do
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Data")]
    pub(crate) realign_answers: bool,
    /// Questions that leave no room for their context: an error, or cut
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value = "error",
        help_heading = "Data"
    )]
    pub(crate) long_questions: LongQuestions,
    /// List a span that two windows share once among the best answers
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Data")]
    pub(crate) dedup_nbest: bool,

    /// Folder for the model, checkpoints and results
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub(crate) output_dir: Option<PathBuf>,
    /// Write into the output folder although it is not empty
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Run")]
    pub(crate) overwrite_output_dir: bool,
    /// Train
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Run")]
    pub(crate) do_train: bool,
    /// Evaluate
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Run")]
    pub(crate) do_eval: bool,
    /// Predict answers for --test_file
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Run")]
    pub(crate) do_predict: bool,
    /// Seed of the data order, the new weights and dropout
    #[arg(long, value_name = "N", value_parser = long, default_value = "42", help_heading = "Run")]
    pub(crate) seed: u64,
    /// Seed of the data order, if it is another
    #[arg(long, value_name = "N", value_parser = long, help_heading = "Run")]
    pub(crate) data_seed: Option<u64>,
    /// Go on from this checkpoint folder; without a value, from the last one in the output folder
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "True", help_heading = "Run")]
    resume_from_checkpoint: Option<String>,
    /// When to evaluate during training
    #[arg(
        long,
        alias = "evaluation_strategy",
        value_enum,
        default_value = "no",
        help_heading = "Run"
    )]
    pub(crate) eval_strategy: When,
    /// Steps between evaluations; below 1 a share of all steps; as logging_steps if not given
    #[arg(long, value_name = "N", value_parser = steps, help_heading = "Run")]
    eval_steps: Option<f64>,
    /// Epochs or steps, as eval_strategy counts, before which nothing is evaluated
    #[arg(long, value_name = "X", value_parser = not_negative, default_value = "0", help_heading = "Run")]
    pub(crate) eval_delay: f64,
    /// Evaluate before the first step too
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Run")]
    pub(crate) eval_on_start: bool,
    /// When to write the loss
    #[arg(long, value_enum, default_value = "steps", help_heading = "Run")]
    pub(crate) logging_strategy: When,
    /// Steps between log entries; below 1 a share of all steps
    #[arg(long, value_name = "N", value_parser = steps, default_value = "500", help_heading = "Run")]
    logging_steps: f64,
    /// Log the first step too
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Run")]
    pub(crate) logging_first_step: bool,
    /// When to save a checkpoint
    #[arg(long, value_enum, default_value = "steps", help_heading = "Run")]
    pub(crate) save_strategy: When,
    /// Steps between checkpoints; below 1 a share of all steps
    #[arg(long, value_name = "N", value_parser = steps, default_value = "500", help_heading = "Run")]
    save_steps: f64,
    /// Checkpoints to keep
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Run")]
    pub(crate) save_total_limit: Option<usize>,
    /// The result is the checkpoint that was evaluated best
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Run")]
    pub(crate) load_best_model_at_end: bool,
    /// What decides which checkpoint is best; f1 if not given
    #[arg(long, value_name = "NAME", help_heading = "Run")]
    metric_for_best_model: Option<String>,
    /// Whether more of it is better; true if not given
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", help_heading = "Run")]
    greater_is_better: Option<bool>,
    /// Who is told about the run: tensorboard, all or none
    #[arg(long, value_name = "NAME", num_args = 1.., help_heading = "Run")]
    report_to: Vec<String>,
    /// Folder of the event files for TensorBoard; runs/<date>_<host> in the output folder if not given
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub(crate) logging_dir: Option<PathBuf>,
    /// Name of the run in the model card; that of the output folder if not given
    #[arg(long, value_name = "NAME", help_heading = "Run")]
    pub(crate) run_name: Option<String>,
    /// Checkpoints hold the model only, so that no run can go on from them
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Run")]
    pub(crate) save_only_model: bool,
    /// What to say: warnings are left out at error and critical
    #[arg(
        long,
        value_enum,
        value_name = "LEVEL",
        default_value = "passive",
        help_heading = "Run"
    )]
    pub(crate) log_level: LogLevel,
    /// No progress bar
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Run")]
    pub(crate) disable_tqdm: bool,

    /// Samples of a micro-batch on each process
    #[arg(long, alias = "per_gpu_train_batch_size", value_name = "N", value_parser = positive, default_value = "8", help_heading = "Training")]
    pub(crate) per_device_train_batch_size: usize,
    /// Samples of an evaluation batch on each process
    #[arg(long, alias = "per_gpu_eval_batch_size", value_name = "N", value_parser = positive, default_value = "8", help_heading = "Training")]
    pub(crate) per_device_eval_batch_size: usize,
    /// Micro-batches that each process adds up for a step
    #[arg(long, value_name = "N", value_parser = positive, default_value = "1", help_heading = "Training")]
    pub(crate) gradient_accumulation_steps: usize,
    /// Leave out the last samples of an epoch when they do not fill a micro-batch
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Training")]
    pub(crate) dataloader_drop_last: bool,
    /// Passes over the data; may be a fraction
    #[arg(long, value_name = "X", value_parser = not_negative, default_value = "3", help_heading = "Training")]
    pub(crate) num_train_epochs: f64,
    /// Steps in all, whatever the number of epochs; -1 for no such limit
    #[arg(long, value_name = "N", default_value = "-1", help_heading = "Training")]
    max_steps: i64,
    /// Highest learning rate
    #[arg(
        long,
        value_name = "X",
        value_parser = not_negative,
        default_value = "5e-5",
        help_heading = "Training"
    )]
    pub(crate) learning_rate: f64,
    /// Shape of the learning rate
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Schedule::NAMES), default_value = "linear", help_heading = "Training")]
    lr_scheduler_type: String,
    /// What that shape needs beside, as JSON: {"num_cycles": 2}
    #[arg(long, value_name = "JSON", default_value = "{}", help_heading = "Training")]
    lr_scheduler_kwargs: String,
    /// Share of all steps to warm up for
    #[arg(long, value_name = "X", value_parser = share, default_value = "0", help_heading = "Training")]
    warmup_ratio: f64,
    /// Steps to warm up for; overrides the share
    #[arg(long, value_name = "N", value_parser = long, default_value = "0", help_heading = "Training")]
    warmup_steps: u64,
    /// The optimiser; adamw_hf is that of transformers before 4.30
    #[arg(long, value_enum, default_value = "adamw_torch", help_heading = "Training")]
    pub(crate) optim: Optimiser,
    /// Weight decay of everything but biases and LayerNorm
    #[arg(long, value_name = "X", value_parser = not_negative, default_value = "0", help_heading = "Training")]
    pub(crate) weight_decay: f64,
    /// Decay of the mean of gradients
    #[arg(long, value_name = "X", value_parser = decay, default_value = "0.9", help_heading = "Training")]
    pub(crate) adam_beta1: f64,
    /// Decay of the mean of their squares
    #[arg(long, value_name = "X", value_parser = decay, default_value = "0.999", help_heading = "Training")]
    pub(crate) adam_beta2: f64,
    /// Added to the denominator
    #[arg(long, value_name = "X", value_parser = not_negative, default_value = "1e-8", help_heading = "Training")]
    pub(crate) adam_epsilon: f64,
    /// Largest norm of the gradient; 0 for no limit
    #[arg(long, value_name = "X", value_parser = not_negative, default_value = "1", help_heading = "Training")]
    pub(crate) max_grad_norm: f64,
    /// Deal out samples of like length together, the longest first
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Training")]
    pub(crate) group_by_length: bool,
    /// Evaluate in BF16 after training in f32
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Training")]
    pub(crate) bf16_full_eval: bool,
    /// Matrix products in BF16
    #[arg(long, value_name = "BOOL", value_parser = truth, num_args = 0..=1, default_missing_value = "true", default_value = "false", help_heading = "Training")]
    pub(crate) bf16: bool,

    /// Nodes to stand for on this machine
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Processes")]
    nodes: Option<usize>,
    /// Processes on each node
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Processes")]
    ppn: Option<usize>,
    /// Processes in all
    #[arg(short = 'n', value_name = "N", value_parser = positive, help_heading = "Processes")]
    ranks: Option<usize>,
    /// Start the processes on the hosts of this file, over ssh
    #[arg(
        short = 'f',
        long,
        alias = "machinefile",
        value_name = "FILE",
        help_heading = "Processes"
    )]
    pub(crate) hostfile: Option<PathBuf>,
    /// Environment variable for all processes: NAME=VALUE
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable, help_heading = "Processes")]
    pub(crate) genv: Vec<(String, String)>,
    /// Port at which rank 0 listens
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Processes")]
    pub(crate) master_port: Option<u16>,
    /// Seconds to wait for another process before giving it up; as ddp_timeout if that is given
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Processes")]
    deadline: Option<Duration>,
    /// The same under its other name
    #[arg(long, value_name = "SECONDS", value_parser = seconds, hide = true, help_heading = "Processes")]
    ddp_timeout: Option<Duration>,
    /// Transport between processes: MPI, or TCP for the other names
    #[arg(long, alias = "xpu_backend", value_enum, help_heading = "Processes")]
    pub(crate) ddp_backend: Option<Backend>,
    /// Given by old launchers; the environment decides
    #[arg(long, value_name = "N", hide = true, help_heading = "Processes")]
    local_rank: Option<i64>,

    /// Flags that stood on the command line.
    #[arg(skip)]
    given: HashSet<String>,
    /// The values of all flags that are implemented.
    #[arg(skip)]
    settings: serde_json::Map<String, serde_json::Value>,
}

/// What happens to questions that leave no room for their context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LongQuestions {
    /// They end the run.
    Error,
    /// Their end is cut off.
    Truncate,
}

/// The levels of Python's logging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum LogLevel {
    Detail,
    Debug,
    Info,
    Passive,
    Warning,
    Error,
    Critical,
}

/// When something is done during training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// Never.
    No,
    /// Every so many steps.
    Steps,
    /// At the end of every epoch.
    Epoch,
}

/// The optimisers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Optimiser {
    /// PyTorch's AdamW.
    #[value(alias = "adamw_torch_fused")]
    AdamwTorch,
    /// The AdamW of transformers itself.
    AdamwHf,
}

/// What people write after `--ddp_backend` and `--xpu_backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    Ccl,
    Gloo,
    Mpi,
}

/// Processes that one machine may have to carry: far more than any has cores for.
const MOST_PROCESSES: usize = 1024;

/// Which checkpoint to go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resume {
    /// None: start anew.
    No,
    /// The last one in the output folder.
    Last,
    /// This one.
    From(PathBuf),
}

/// Reads a command line, program name first. The second value is what to warn about. An error prints itself and the
/// usage, and knows its exit status ([`clap::Error::exit`]): 2, or 0 for `--help`.
pub(crate) fn parse<I>(command_line: I) -> Result<(Args, Vec<String>), clap::Error>
where
    I: IntoIterator<Item: Into<OsString>>,
{
    let mut command = command();
    let mut words: Vec<OsString> = command_line.into_iter().map(Into::into).collect();
    if let [_, file] = words.as_slice()
        && Path::new(file).extension().is_some_and(|e| e == "json")
        && !file.to_string_lossy().starts_with('-')
    {
        let more = from_json_file(Path::new(file)).map_err(|reason| command.error(ErrorKind::Io, reason))?;
        words.pop();
        words.extend(more);
    }
    let matches = command.try_get_matches_from_mut(spell(words))?;
    let mut args = Args::from_arg_matches(&matches).map_err(|e| e.format(&mut command))?;
    args.given = given(&matches);
    args.settings = settings(&matches);
    args.settings.remove("token"); // a secret is not written down

    for flag in REFUSED {
        if values_of(&matches, flag.name).iter().any(|value| !flag.is_quiet(value)) {
            let message = format!("--{} is refused: {}", flag.name, flag.reason);
            return Err(command.error(ErrorKind::ArgumentConflict, message));
        }
    }
    if let Err(reason) = args.check() {
        return Err(command.error(ErrorKind::MissingRequiredArgument, reason));
    }
    let loud = |flag: &&flags::Flag| values_of(&matches, flag.name).iter().any(|value| !flag.is_quiet(value));
    let mut warnings: Vec<_> = NO_EFFECT
        .iter()
        .filter(loud)
        .map(|flag| format!("--{} has no effect: {}", flag.name, flag.reason))
        .collect();
    let trackers = args
        .report_to
        .iter()
        .filter(|name| !matches!(name.as_str(), "none" | "all" | "tensorboard"));
    warnings.extend(
        trackers.map(|name| format!("--report_to {name} has no effect: there are files for TensorBoard, and JSON")),
    );
    if args.log_level >= LogLevel::Error {
        warnings.clear();
    }
    Ok((args, warnings))
}

/// The command with the flags of all three groups.
fn command() -> Command {
    let mut command = Args::command();
    for flag in NO_EFFECT.iter().chain(REFUSED) {
        command = command.arg(
            Arg::new(flag.name)
                .long(flag.name)
                .num_args(0..)
                .default_missing_value("true")
                .action(ArgAction::Append)
                .hide(true),
        );
    }
    command
}

/// The values of a flag that [`command`] has added; none if it was not given.
fn values_of(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches
        .get_many::<String>(name)
        .map_or(Vec::new(), |values| values.cloned().collect())
}

/// The values of the flags of [`Args`] without those about processes, as a file of arguments would hold them.
fn settings(matches: &ArgMatches) -> serde_json::Map<String, serde_json::Value> {
    let value = |raw: &std::ffi::OsStr| {
        let text = raw.to_string_lossy();
        let number = serde_json::from_str(&text)
            .ok()
            .filter(|value: &serde_json::Value| !value.is_string());
        number.unwrap_or_else(|| serde_json::Value::from(text.into_owned()))
    };
    Args::command()
        .get_arguments()
        .filter(|arg| arg.get_help_heading().is_some_and(|heading| heading != "Processes"))
        .filter_map(|arg| {
            let name = arg.get_id().as_str();
            let mut values: Vec<_> = matches.get_raw(name)?.map(value).collect();
            let value = if values.len() == 1 {
                values.remove(0)
            } else {
                values.into()
            };
            Some((name.to_owned(), value))
        })
        .collect()
}

fn given(matches: &ArgMatches) -> HashSet<String> {
    matches
        .ids()
        .filter(|id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine))
        .map(|id| id.as_str().to_owned())
        .collect()
}

/// One spelling: `--max-steps` and `-ppn` become `--max_steps` and `--ppn`, `-genv A 1` becomes `--genv A=1`, and a
/// negative number is tied to its flag, `--learning_rate=-1e-9`, so that it is not taken for a flag.
fn spell(words: Vec<OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = Vec::with_capacity(words.len());
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let Some(text) = word.to_str() else {
            out.push(word);
            continue;
        };
        let long = match text {
            "-ppn" | "-genv" | "-hostfile" | "-machinefile" => format!("-{text}"),
            "-np" => "-n".to_owned(),
            _ => text.to_owned(),
        };
        if long == "--" {
            out.push(word);
            out.extend(words);
            break;
        }
        if long == "--genv"
            && let Some(name) = words.next_if(|next| !next.to_string_lossy().contains('='))
        {
            out.push(long.into());
            let mut pair = name;
            if let Some(value) = words.next() {
                pair.push("=");
                pair.push(value);
            }
            out.push(pair);
            continue;
        }
        match long.strip_prefix("--") {
            None if text.starts_with('-') && text.parse::<f64>().is_ok() => match out.last_mut() {
                Some(flag) if flag.to_string_lossy().starts_with('-') && !flag.to_string_lossy().contains('=') => {
                    flag.push("=");
                    flag.push(text);
                }
                _ => out.push(word),
            },
            None => out.push(long.into()),
            Some(flag) => {
                let (name, value) = flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v)));
                let mut flag = format!("--{}", name.replace('-', "_"));
                if let Some(value) = value {
                    flag.push('=');
                    flag.push_str(value);
                }
                out.push(flag.into());
            }
        }
    }
    out
}

/// The command line that a JSON object of arguments stands for.
fn from_json_file(path: &Path) -> Result<Vec<OsString>, String> {
    let at = path.display();
    let text = std::fs::read(path).map_err(|e| format!("cannot read the arguments in {at}: {e}"))?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| format!("{at}:{}:{}: {e}", e.line(), e.column()))?;
    let serde_json::Value::Object(map) = value else {
        return Err(format!("{at}: expected an object of arguments"));
    };
    let word = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut words = Vec::new();
    for (name, value) in &map {
        match value {
            serde_json::Value::Null => {}
            serde_json::Value::Array(items) if items.is_empty() => {}
            serde_json::Value::Array(items) => {
                words.push(format!("--{name}").into());
                words.extend(items.iter().map(|item| word(item).into()));
            }
            single => words.push(format!("--{name}={}", word(single)).into()),
        }
    }
    Ok(words)
}

impl Args {
    /// Whether the built-in data and encoder are meant: nothing on the command line names a model or data.
    pub(crate) fn demo(&self) -> bool {
        self.model_name_or_path.is_none()
            && self.dataset_name.is_none()
            && self.train_file.is_none()
            && self.validation_file.is_none()
            && self.test_file.is_none()
    }

    /// Whether the flag stood on the command line; its default may then not be replaced by another.
    pub(crate) fn given(&self, flag: &str) -> bool {
        self.given.contains(flag)
    }

    /// The values of all flags that are implemented.
    pub(crate) fn settings(&self) -> &serde_json::Map<String, serde_json::Value> {
        &self.settings
    }

    /// Whether event files for TensorBoard are written. As there, "all" is what is not said.
    pub(crate) fn tensorboard(&self) -> bool {
        let asks = |name: &String| matches!(name.as_str(), "all" | "tensorboard");
        self.report_to.is_empty() || self.report_to.iter().any(asks)
    }

    /// Nodes to stand for and processes on each, for jobs on this machine: 4 of 2 for the built-in data, else 1 of 1.
    pub(crate) fn nodes_and_ppn(&self) -> (usize, usize) {
        let ppn = self
            .ppn
            .unwrap_or(if self.demo() && self.ranks.is_none() { 2 } else { 1 });
        let nodes = match (self.nodes, self.ranks) {
            (Some(nodes), _) => nodes,
            (None, Some(ranks)) => ranks.div_ceil(ppn),
            (None, None) if self.demo() => 4,
            (None, None) => 1,
        };
        match (self.ppn, self.ranks) {
            // `-n 6 --nodes 3` leaves the processes on each node open.
            (None, Some(ranks)) => (nodes, ranks.div_ceil(nodes)),
            _ => (nodes, ppn),
        }
    }

    /// Processes in all and on each host, as far as they were given, for jobs over a host file.
    pub(crate) fn ranks_and_ppn(&self) -> (Option<usize>, Option<usize>) {
        (self.ranks, self.ppn)
    }

    /// How long to wait for a silent peer, where that was given.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.deadline.or(self.ddp_timeout)
    }

    /// The limit on the number of steps.
    pub(crate) fn max_steps(&self) -> Option<u64> {
        u64::try_from(self.max_steps).ok().filter(|&n| n > 0)
    }

    /// Which checkpoint to go on from.
    pub(crate) fn resume(&self) -> Resume {
        match self.resume_from_checkpoint.as_deref() {
            None => Resume::No,
            Some(value) => match truth(value) {
                Ok(true) => Resume::Last,
                Ok(false) => Resume::No,
                Err(_) => Resume::From(value.into()),
            },
        }
    }

    /// Steps of warm-up in a run of `total`.
    pub(crate) fn warmup(&self, total: u64) -> u64 {
        if self.warmup_steps > 0 {
            self.warmup_steps
        } else {
            (total as f64 * self.warmup_ratio).ceil() as u64
        }
    }

    /// The shape of the learning rate.
    pub(crate) fn schedule(&self) -> Result<Schedule, String> {
        let options = serde_json::from_str(&self.lr_scheduler_kwargs).map_err(|e| {
            format!(
                "--lr_scheduler_kwargs {}: expected a JSON object: {e}",
                self.lr_scheduler_kwargs
            )
        })?;
        Schedule::new(&self.lr_scheduler_type, &options, self.learning_rate)
            .map_err(|e| format!("--lr_scheduler_type {}: {e}", self.lr_scheduler_type))
    }

    /// Steps between log entries in a run of `total`.
    pub(crate) fn logging_steps(&self, total: u64) -> u64 {
        every(self.logging_steps, total)
    }

    /// Steps between checkpoints in a run of `total`.
    pub(crate) fn save_steps(&self, total: u64) -> u64 {
        every(self.save_steps, total)
    }

    /// Steps between evaluations in a run of `total`.
    pub(crate) fn eval_steps(&self, total: u64) -> u64 {
        every(self.eval_steps.unwrap_or(self.logging_steps), total)
    }

    /// Whether the validation data are read: an evaluation during training asks for the one at its end too.
    pub(crate) fn evaluates(&self) -> bool {
        self.do_eval || self.eval_strategy != When::No
    }

    /// Whether evaluations decide which checkpoint is the best.
    pub(crate) fn looks_for_the_best(&self) -> bool {
        self.load_best_model_at_end || self.metric_for_best_model.is_some()
    }

    /// What decides that.
    pub(crate) fn metric(&self) -> &str {
        let name = self.metric_for_best_model.as_deref().unwrap_or("f1");
        name.strip_prefix("eval_").unwrap_or(name)
    }

    /// Whether more of it is better.
    pub(crate) fn greater_is_better(&self) -> bool {
        self.greater_is_better.unwrap_or(true)
    }

    /// Whether a best checkpoint can be found as it was asked for.
    fn check_best(&self) -> Result<(), String> {
        let metrics: &[&str] = if self.version_2_with_negative {
            &["f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact"]
        } else {
            &["f1", "exact_match"]
        };
        if !metrics.contains(&self.metric()) {
            return Err(format!(
                "--metric_for_best_model {}: evaluation gives {}",
                self.metric_for_best_model.as_deref().unwrap_or_default(),
                metrics.join(", ")
            ));
        }
        if !self.load_best_model_at_end {
            return Ok(());
        }
        if self.eval_strategy == When::No || self.eval_strategy != self.save_strategy {
            let name = |when: When| {
                when.to_possible_value()
                    .map_or_else(String::new, |value| value.get_name().to_owned())
            };
            return Err(format!(
                "--load_best_model_at_end needs checkpoints that were evaluated: --eval_strategy is {} and \
                 --save_strategy {}, expected steps or epoch for both",
                name(self.eval_strategy),
                name(self.save_strategy)
            ));
        }
        let (saves, evaluations) = (self.save_steps, self.eval_steps.unwrap_or(self.logging_steps));
        let ratio = saves / evaluations;
        let multiple = (saves < 1.0) == (evaluations < 1.0) && (ratio - ratio.round()).abs() < 1e-9;
        if self.eval_strategy == When::Steps && !multiple {
            return Err(format!(
                "--load_best_model_at_end needs checkpoints that were evaluated: --save_steps {saves} is no multiple \
                 of the {evaluations} of --eval_steps"
            ));
        }
        Ok(())
    }

    /// What flags say together.
    fn check(&self) -> Result<(), String> {
        let missing = |what: &str, file: &str| Err(format!("{what} needs --{file} or --dataset_name"));
        if let (Some(nodes), Some(ranks)) = (self.nodes, self.ranks)
            && nodes * self.ppn.unwrap_or(ranks / nodes) != ranks
        {
            return Err(format!(
                "-n {ranks} processes do not spread evenly over --nodes {nodes}"
            ));
        }
        if self.hostfile.is_none()
            && self.nodes.is_none()
            && let (Some(ranks), Some(ppn)) = (self.ranks, self.ppn)
            && ranks % ppn != 0
        {
            return Err(format!("-n {ranks} processes do not make whole nodes of --ppn {ppn}"));
        }
        let (nodes, per_node) = self.nodes_and_ppn();
        let (processes, most) = match self.hostfile {
            Some(_) => (self.ranks.unwrap_or(1), LARGEST_WORLD),
            None => (nodes * per_node, MOST_PROCESSES),
        };
        if processes > most {
            return Err(format!("asked for {processes} processes, at most {most} are possible"));
        }
        self.schedule()?;
        self.check_best()?;
        if self.demo() {
            return Ok(());
        }
        match &self.model_name_or_path {
            None => return Err("real data need a model: give --model_name_or_path".into()),
            Some(path) if path.to_string_lossy().contains(".ckpt") => {
                return Err(format!(
                    "--model_name_or_path {}: TensorFlow checkpoints are not read: save the model as safetensors",
                    path.display()
                ));
            }
            Some(_) => {}
        }
        if self.output_dir.is_none() {
            return Err("the results need a place: give --output_dir".into());
        }
        if self.dataset_name.is_none()
            && self.train_file.is_none()
            && self.validation_file.is_none()
            && self.test_file.is_none()
        {
            return Err("the model needs data: give --train_file, --validation_file or --dataset_name".into());
        }
        if self.do_train && self.train_file.is_none() && self.dataset_name.is_none() {
            return missing("--do_train", "train_file");
        }
        if self.do_eval && self.validation_file.is_none() && self.dataset_name.is_none() {
            return missing("--do_eval", "validation_file");
        }
        if self.eval_strategy != When::No && self.validation_file.is_none() && self.dataset_name.is_none() {
            return missing("--eval_strategy", "validation_file");
        }
        if self.do_predict && self.test_file.is_none() && self.dataset_name.is_none() {
            return missing("--do_predict", "test_file");
        }
        if !self.do_train && !self.do_eval && !self.do_predict {
            return Err("nothing to do: give --do_train, --do_eval or --do_predict".into());
        }
        Ok(())
    }
}

/// A number of steps, or below 1 a share of them.
fn every(value: f64, total: u64) -> u64 {
    let steps = if value < 1.0 {
        (value * total as f64).ceil()
    } else {
        value
    };
    (steps as u64).max(1)
}

fn truth(text: &str) -> Result<bool, String> {
    match text.to_lowercase().as_str() {
        "yes" | "true" | "t" | "y" | "1" => Ok(true),
        "no" | "false" | "f" | "n" | "0" => Ok(false),
        _ => Err("expected True or False".into()),
    }
}

/// No number of things in a run comes near this; below it, products of two fit in 64 bits.
const MOST: usize = i32::MAX as usize;

fn whole(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&n| n <= MOST);
    number.ok_or_else(|| format!("expected a whole number from 0 to {MOST}"))
}

fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=MOST).contains(n));
    number.ok_or_else(|| format!("expected a whole number from 1 to {MOST}"))
}

fn long(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

fn number(text: &str, expected: &str, accept: impl FnOnce(f64) -> bool) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|&x: &f64| x.is_finite() && accept(x))
        .ok_or_else(|| format!("expected {expected}"))
}

fn finite(text: &str) -> Result<f64, String> {
    number(text, "a number", |_| true)
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, "a number of at least 0", |x| x >= 0.0)
}

fn share(text: &str) -> Result<f64, String> {
    number(text, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x))
}

fn decay(text: &str) -> Result<f64, String> {
    number(text, "a number from 0 to below 1", |x| (0.0..1.0).contains(&x))
}

fn steps(text: &str) -> Result<f64, String> {
    number(text, "a whole number of steps, or a share of them below 1", |x| {
        x > 0.0 && (x < 1.0 || x.fract() == 0.0)
    })
}

fn seconds(text: &str) -> Result<Duration, String> {
    number(text, "a number of seconds above 0", |x| x > 0.0 && x < 1e9).map(Duration::from_secs_f64)
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(Args, Vec<String>), clap::Error> {
        parse(std::iter::once("squad_4node").chain(line.split_whitespace()))
    }

    fn good(line: &str) -> (Args, Vec<String>) {
        read(line).unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    /// The message of a command line that must fail with the status of wrong usage.
    fn bad(line: &str) -> String {
        let error = read(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
        error.to_string()
    }

    const REAL: &str = "--model_name_or_path m --train_file t.json --do_train --output_dir o";

    #[test]
    fn the_table_is_sound() {
        command().debug_assert();
        let mut names: Vec<_> = NO_EFFECT.iter().chain(REFUSED).map(|flag| flag.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn no_argument_means_four_nodes_of_two() {
        let (args, warnings) = good("");
        assert!(args.demo());
        assert_eq!(args.nodes_and_ppn(), (4, 2));
        assert!(warnings.is_empty());
        assert_eq!((args.seed, args.max_seq_length, args.doc_stride), (42, 384, 128));
        assert_eq!(good("--nodes 1 --ppn 1").0.nodes_and_ppn(), (1, 1));
        assert_eq!(good("--nodes 2").0.nodes_and_ppn(), (2, 2));
        assert_eq!(good("-n 8 --ppn 4").0.nodes_and_ppn(), (2, 4));
        assert_eq!(good("-n 6 --nodes 3").0.nodes_and_ppn(), (3, 2));
        assert_eq!(good("-n 3").0.nodes_and_ppn(), (3, 1));
        assert!(bad("-n 5 --ppn 2").contains("whole nodes"));
        assert!(bad("-n 5 --nodes 2").contains("evenly"));
    }

    #[test]
    fn defaults_are_those_of_run_qa() {
        let (args, _) = good(REAL);
        assert_eq!(args.nodes_and_ppn(), (1, 1));
        assert_eq!(
            (args.learning_rate, args.weight_decay, args.max_grad_norm),
            (5e-5, 0.0, 1.0)
        );
        assert_eq!(
            (args.adam_beta1, args.adam_beta2, args.adam_epsilon),
            (0.9, 0.999, 1e-8)
        );
        assert_eq!(
            (args.num_train_epochs, args.max_steps(), args.warmup(100)),
            (3.0, None, 0)
        );
        assert_eq!(
            (args.per_device_train_batch_size, args.per_device_eval_batch_size),
            (8, 8)
        );
        assert_eq!(
            (args.gradient_accumulation_steps, args.seed, args.n_best_size),
            (1, 42, 20)
        );
        assert_eq!(
            (args.logging_steps(9000), args.save_steps(9000), args.eval_steps(9000)),
            (500, 500, 500)
        );
        assert_eq!((args.eval_strategy, args.save_strategy), (When::No, When::Steps));
        assert_eq!(
            (args.schedule(), args.optim),
            (Ok(Schedule::Linear), Optimiser::AdamwTorch)
        );
        assert_eq!((args.max_answer_length, args.null_score_diff_threshold), (30, 0.0));
        assert!(!args.bf16 && !args.version_2_with_negative && !args.overwrite_output_dir);
        assert_eq!(args.resume(), Resume::No);
        assert!(args.given("do_train") && !args.given("learning_rate"));
    }

    /// The four commands of the published guides, after the program's name is exchanged and mpirun taken away.
    #[test]
    fn published_commands() {
        let (args, warnings) = good(
            "--model_name_or_path distilbert-base-uncased --dataset_name squad --do_train --do_eval \
             --per_device_train_batch_size 32 --num_train_epochs 1 --output_dir debug_squad/ --use_ipex --bf16 --no_cuda",
        );
        assert!(args.bf16 && args.do_train && args.do_eval && !args.demo());
        assert_eq!(args.dataset_name.as_deref(), Some("squad"));
        assert_eq!((args.per_device_train_batch_size, args.num_train_epochs), (32, 1.0));
        assert!(warnings.is_empty(), "{warnings:?}");

        let rest = "--dataset_name squad --do_train --do_eval --output_dir o";
        let (args, _) = good(&format!(
            "--model_name_or_path d {rest} --xpu_backend ccl --no_cuda --bf16"
        ));
        assert_eq!(args.ddp_backend, Some(Backend::Ccl));
        let (args, _) = good(&format!(
            "--model_name_or_path google-bert/bert-base-uncased {rest} --max_seq_length 384 --doc_stride 128 --bf16 --use_cpu"
        ));
        assert_eq!((args.max_seq_length, args.doc_stride), (384, 128));
        let (args, _) = good(&format!(
            "-n 2 -ppn 1 -genv OMP_NUM_THREADS=23 --model_name_or_path b {rest}"
        ));
        assert_eq!(args.nodes_and_ppn(), (2, 1));
        assert_eq!(args.genv, [("OMP_NUM_THREADS".to_owned(), "23".to_owned())]);
        let (args, _) = good("-f hosts -n 8 -ppn 2 -genv OMP_NUM_THREADS 24");
        assert_eq!(args.ranks_and_ppn(), (Some(8), Some(2)));
        assert_eq!(args.hostfile.as_deref(), Some(Path::new("hosts")));
        assert_eq!(args.genv, [("OMP_NUM_THREADS".to_owned(), "24".to_owned())]);
    }

    #[test]
    fn spellings() {
        let (args, _) = good("--max-steps=7 --learning-rate 3e-5 --overwrite-output-dir");
        assert_eq!(
            (args.max_steps(), args.learning_rate, args.overwrite_output_dir),
            (Some(7), 3e-5, true)
        );
        assert_eq!(good("--learning_r 3e-4").0.learning_rate, 3e-4, "an unambiguous prefix");
        for (text, value) in [
            ("--bf16", true),
            ("--bf16 True", true),
            ("--bf16 yes", true),
            ("--bf16=false", false),
            ("--bf16 F", false),
            ("--bf16 0", false),
        ] {
            assert_eq!(good(text).0.bf16, value, "{text}");
        }
        assert!(bad("--bf16=perhaps").contains("expected True or False"));
        assert_eq!(good("--evaluation_strategy epoch").0.eval_strategy, When::Epoch);
        assert_eq!(good("--per_gpu_train_batch_size 4").0.per_device_train_batch_size, 4);
        assert_eq!(good("--max_steps -1").0.max_steps(), None);
        assert_eq!(
            good("--null_score_diff_threshold -1.5").0.null_score_diff_threshold,
            -1.5
        );
        assert_eq!(good("--logging_steps 0.1").0.logging_steps(250), 25);
        assert_eq!(good("--warmup_ratio 0.1").0.warmup(25), 3);
        assert_eq!(good("--warmup_ratio 0.1 --warmup_steps 5").0.warmup(25), 5);
        assert_eq!(good("--resume_from_checkpoint").0.resume(), Resume::Last);
        assert_eq!(
            good("--resume_from_checkpoint o/checkpoint-3").0.resume(),
            Resume::From("o/checkpoint-3".into())
        );
        assert_eq!(good("--ddp_timeout 1800").0.deadline(), Some(Duration::from_secs(1800)));
        assert_eq!(good("--optim adamw_hf").0.optim, Optimiser::AdamwHf);
        assert_eq!(good("--optim adamw_torch_fused").0.optim, Optimiser::AdamwTorch);
    }

    #[test]
    fn unknown_flags_suggest_the_nearest() {
        let message = bad("--learning_rat_e 3e-5");
        assert!(message.contains("--learning_rate"), "{message}");
        let message = bad("--per_device_train_batchsize 3");
        assert!(message.contains("--per_device_train_batch_size"), "{message}");
        let message = bad("--no-such-thing-at-all");
        assert!(message.contains("--no_such_thing_at_all"), "{message}");
        assert!(bad("stray").contains("stray"));
    }

    #[test]
    fn values_out_of_range() {
        for line in [
            "--per_device_train_batch_size 0",
            "--max_seq_length -3",
            "--learning_rate nan",
            "--learning_rate -1",
            "--warmup_ratio 1.5",
            "--save_steps 2.5",
            "--num_train_epochs many",
            "--master_port 70000",
            "--genv NOVALUE",
            "--eval_strategy sometimes",
            "--ddp_backend nccl",
        ] {
            assert!(
                bad(line).contains("invalid value") || bad(line).contains("a value is required"),
                "{line}: {}",
                bad(line)
            );
        }
    }

    #[test]
    fn flags_without_effect_warn_once_or_not_at_all() {
        let (_, warnings) =
            good("--tf32 True --past_index 2 --past_index 3 --use_ipex --no_cuda --no-pad-to-max-length");
        assert_eq!(
            warnings,
            [
                "--tf32 has no effect: a CPU has no TF32",
                "--past_index has no effect: question answering has no past"
            ]
        );
        assert!(good("--tf32 True --log_level error").1.is_empty());
        assert_eq!(good("--save_safetensors False").1.len(), 1);
        assert_eq!(good("--no_save_safetensors").1.len(), 1);
        assert!(
            good("--save_safetensors --no_save_safetensors=False --tf32 no")
                .1
                .is_empty()
        );
    }

    /// Names and defaults of `TrainingArguments`, by version: see `reference/training_arguments.py`.
    const TRAINING_ARGUMENTS: &str = include_str!("../tests/fixtures/training_arguments.json");

    /// The model's and the data's arguments of `run_qa.py`, of all versions.
    const RUN_QA: &str = "model_name_or_path config_name tokenizer_name cache_dir model_revision use_auth_token token \
        trust_remote_code dataset_name dataset_config_name train_file validation_file test_file overwrite_cache \
        preprocessing_num_workers max_seq_length pad_to_max_length max_train_samples max_eval_samples \
        max_predict_samples version_2_with_negative null_score_diff_threshold doc_stride n_best_size \
        max_answer_length no_pad_to_max_length no_logging_nan_inf_filter no_dataloader_pin_memory \
        no_skip_memory_metrics no_save_safetensors no_log_on_each_node no_remove_unused_columns \
        no_eval_do_concat_batches";

    #[test]
    fn every_argument_of_run_qa_is_known() {
        let command = command();
        let known: HashSet<String> = command
            .get_arguments()
            .flat_map(|arg| {
                arg.get_long_and_visible_aliases()
                    .into_iter()
                    .chain(arg.get_all_aliases())
                    .flatten()
            })
            .map(str::to_owned)
            .collect();
        let versions: serde_json::Value = serde_json::from_str(TRAINING_ARGUMENTS).unwrap();
        let versions = versions.as_object().unwrap();
        let names = versions.values().flat_map(|fields| fields.as_object().unwrap().keys());
        let unknown: Vec<_> = names
            .map(String::as_str)
            .chain(RUN_QA.split_whitespace())
            .filter(|name| !known.contains(*name))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    /// A file with all defaults asks for nothing special.
    #[test]
    fn defaults_give_no_warning() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("all.json");
        let versions: serde_json::Value = serde_json::from_str(TRAINING_ARGUMENTS).unwrap();
        for (version, fields) in versions.as_object().unwrap() {
            let mut fields = fields.clone();
            fields["output_dir"] = "o".into();
            std::fs::write(&file, fields.to_string()).unwrap();
            let (args, warnings) = parse([OsString::from("squad_4node"), file.clone().into()]).unwrap();
            assert!(warnings.is_empty(), "{version}: {warnings:?}");
            assert_eq!((args.seed, args.learning_rate), (42, 5e-5), "{version}");
        }
    }

    /// What `examples/docs/run_qa_flags.md` must say.
    fn table() -> String {
        let mut text = String::from(include_str!("../docs/run_qa_flags_intro.md"));
        let command = command();
        let known: HashSet<_> = NO_EFFECT.iter().chain(REFUSED).map(|flag| flag.name).collect();
        for heading in ["Model", "Data", "Run", "Training", "Processes"] {
            text += &format!("\n## {heading}: implemented\n\n| flag | default | what it does |\n|---|---|---|\n");
            for arg in command
                .get_arguments()
                .filter(|arg| arg.get_help_heading() == Some(heading))
            {
                let long = arg.get_long().map(|name| format!("`--{name}`"));
                let short = arg.get_short().map(|name| format!("`-{name}`"));
                let aliases = arg.get_all_aliases().unwrap_or_default();
                let names: Vec<_> = long
                    .into_iter()
                    .chain(short)
                    .chain(aliases.iter().map(|alias| format!("`--{alias}`")))
                    .collect();
                let default: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                text += &format!(
                    "| {} | {} | {} |\n",
                    names.join(", "),
                    default.join(" "),
                    help.replace('|', "\\|")
                );
            }
        }
        for (title, list) in [("Accepted without effect", NO_EFFECT), ("Refused", REFUSED)] {
            text += &format!("\n## {title}\n\n| flag | passes silently with | reason |\n|---|---|---|\n");
            for flag in list {
                let quiet = match flag.quiet {
                    ["*"] => "every value".to_owned(),
                    values => values.iter().map(|v| format!("`{v}`")).collect::<Vec<_>>().join(", "),
                };
                text += &format!("| `--{}` | {quiet} | {} |\n", flag.name, flag.reason);
            }
        }
        assert!(known.iter().all(|name| text.contains(&format!("`--{name}`"))));
        text
    }

    /// After a change of the flags: `AZULEJO_WRITE_DOCS=1 cargo test -p azulejo-examples --test args` writes the page anew.
    #[test]
    fn the_page_of_flags_is_true() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/run_qa_flags.md");
        let table = table();
        if std::env::var_os("AZULEJO_WRITE_DOCS").is_some() {
            std::fs::write(&path, &table).unwrap();
        }
        let page = std::fs::read_to_string(&path).unwrap();
        for (page, table) in page.lines().zip(table.lines()) {
            assert_eq!(page, table, "{}", path.display());
        }
        assert_eq!(page.lines().count(), table.lines().count(), "{}", path.display());
    }

    #[test]
    fn schedules_are_checked_before_anything_is_read() {
        let (args, _) = good(r#"--lr_scheduler_type cosine_with_restarts --lr_scheduler_kwargs={"num_cycles":2}"#);
        assert_eq!(args.schedule(), Ok(Schedule::CosineWithRestarts { cycles: 2.0 }));
        assert!(bad("--lr_scheduler_type stairs").contains("cosine_with_restarts"));
        assert!(bad("--lr_scheduler_kwargs=[1]").contains("expected a JSON object"));
        assert!(bad(r#"--lr_scheduler_kwargs={"power":2}"#).contains("no option power"));
    }

    #[test]
    fn trackers() {
        assert!(good("").0.tensorboard() && good("--report_to all").0.tensorboard());
        assert!(!good("--report_to none").0.tensorboard());
        let (args, warnings) = good("--report_to wandb tensorboard --seed 1");
        assert!(args.tensorboard());
        assert_eq!(
            warnings,
            ["--report_to wandb has no effect: there are files for TensorBoard, and JSON"]
        );
        assert!(!good("--report_to wandb").0.tensorboard());
    }

    /// What a run writes down can be given to the next one.
    #[test]
    fn settings_are_a_file_of_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("training_args.json");
        let (args, _) = good(&format!(
            "{REAL} --bf16 --learning-rate 3e-5 --report_to none --max_steps 7 --genv A=1"
        ));
        assert_eq!(args.settings()["learning_rate"], 3e-5);
        std::fs::write(&file, serde_json::Value::Object(args.settings().clone()).to_string()).unwrap();
        let (again, warnings) = parse([OsString::from("squad_4node"), file.into()]).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(again.settings(), args.settings());
    }

    #[test]
    fn prediction_needs_a_file() {
        let model = "--model_name_or_path m --output_dir o";
        assert!(bad(&format!("{model} --do_predict --train_file t")).contains("--test_file"));
        assert!(good(&format!("{model} --do_predict --test_file t.json")).0.do_predict);
        assert!(
            bad("--model_name_or_path bert.ckpt.index --output_dir o --do_train --train_file t").contains("TensorFlow")
        );
    }

    #[test]
    fn refused_flags_say_why() {
        assert!(bad("--fp16").contains("--fp16 is refused: a CPU computes in BF16: use --bf16"));
        assert!(bad("--deepspeed ds.json").contains("GPUs"));
        assert!(bad("--fsdp full_shard auto_wrap").contains("--fsdp is refused"));
        assert!(
            good("--fp16 False --push_to_hub=no --trust_remote_code 0 --fp16_opt_level O1")
                .1
                .is_empty()
        );
    }

    #[test]
    fn the_best_model() {
        let real = "--model_name_or_path m --train_file t --validation_file v --do_train --output_dir o";
        let (args, _) = good(real);
        assert!(!args.evaluates() && !args.looks_for_the_best());
        assert_eq!((args.metric(), args.greater_is_better()), ("f1", true));
        let (args, _) = good(&format!(
            "{real} --eval_strategy steps --metric_for_best_model eval_exact_match"
        ));
        assert!(
            args.evaluates(),
            "an evaluation during training asks for the one at its end"
        );
        assert!(args.looks_for_the_best() && !args.load_best_model_at_end);
        assert_eq!(args.metric(), "exact_match");
        let best = format!("{real} --load_best_model_at_end --eval_strategy steps");
        assert!(!good(&format!("{best} --greater_is_better no")).0.greater_is_better());
        good(&format!("{best} --save_steps 0.5 --eval_steps 0.25"));
        assert!(bad(&format!("{best} --save_steps 0.5 --eval_steps 2")).contains("no multiple"));
        assert!(bad(&format!("{best} --save_steps 0.5 --eval_steps 0.2")).contains("no multiple"));
    }

    #[test]
    fn real_input_must_be_complete() {
        assert!(bad("--train_file t.json --do_train --output_dir o").contains("--model_name_or_path"));
        assert!(bad("--model_name_or_path m --do_train --output_dir o").contains("--train_file"));
        assert!(bad("--model_name_or_path m --train_file t.json --do_train").contains("--output_dir"));
        assert!(
            bad("--model_name_or_path m --validation_file v.json --do_train --output_dir o").contains("--train_file")
        );
        assert!(
            bad("--model_name_or_path m --train_file t.json --do_eval --output_dir o").contains("--validation_file")
        );
        assert!(bad(&format!("{REAL} --eval_strategy epoch")).contains("--validation_file"));
        assert!(bad("--model_name_or_path m --train_file t.json --output_dir o").contains("nothing to do"));
    }

    #[test]
    fn a_file_of_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("args.json");
        let from = |text: &str| {
            std::fs::write(&file, text).unwrap();
            parse([OsString::from("squad_4node"), file.clone().into()])
        };
        let text = r#"{"max_steps": 5, "bf16": true, "learning_rate": 3e-05, "report_to": ["none"], "data_seed": null,
            "output_dir": "a b"}"#;
        let (args, warnings) = from(text).unwrap();
        assert_eq!((args.max_steps(), args.bf16, args.learning_rate), (Some(5), true, 3e-5));
        assert_eq!(args.output_dir.as_deref(), Some(Path::new("a b")));
        assert!(warnings.is_empty(), "{warnings:?}");
        let message = from("{\"max_steps\": 5,\n oops}").unwrap_err().to_string();
        assert!(message.contains("args.json:2:"), "{message}");
        assert!(from("[1]").unwrap_err().to_string().contains("expected an object"));
        assert!(
            from(r#"{"max_step": 5, "nosuch": 1}"#)
                .unwrap_err()
                .to_string()
                .contains("--nosuch")
        );
        assert!(bad("missing.json").contains("cannot read"));
    }

    #[test]
    fn help_is_grouped() {
        let error = read("--help").unwrap_err();
        assert_eq!(error.exit_code(), 0);
        let help = error.to_string();
        for heading in ["Model:", "Data:", "Run:", "Training:", "Processes:"] {
            assert!(help.contains(heading), "{heading}");
        }
        assert!(!help.contains("deepspeed"));
    }
}
