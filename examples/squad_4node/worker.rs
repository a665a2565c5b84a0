//! One rank: finds its place, joins the others, loads, trains, evaluates, saves, reports.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use azulejo_bert::checkpoint::{self, Folder};
use azulejo_bert::features::Feature;
use azulejo_bert::model::Model;
use azulejo_bert::optim::{AdamW, Settings, Variant};
use azulejo_bert::params::{Head, Params};
use azulejo_bert::precision::Precision;
use azulejo_bert::results::{python_json, rounded, save_metrics};
use azulejo_bert::resume::{self, Best, History};
use azulejo_bert::runtime::{TeamExecutor, preparation_threads};
use azulejo_bert::sampler::Sampler;
use azulejo_bert::schedule::LearningRate;
use azulejo_bert::squad::features::{Windows, training_features};
use azulejo_bert::squad::read::DataSet;
use azulejo_bert::tokenizer::Tokenizer;
use azulejo_bert::trainer::{Every, Outcome, TrainConfig, total_steps, train};
use azulejo_collectives::launch::Launch;
use azulejo_collectives::{Backend, Communicator, Options, connect};
use azulejo_examples::demo;
use azulejo_topology::Team;
use serde_json::{Map, Value, json};

use crate::answer::Purpose;
use crate::args::{Args, Backend as Asked, LogLevel, LongQuestions, Optimiser, Resume, When};
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::place::Place;
use crate::progress::{Meter, Watch};
use crate::records::{Records, arguments};
use crate::sources::Sources;
use crate::{DEADLINE, Failure, Told};

/// Seed of the built-in data; `--seed` is that of training.
const DEMO_SEED: u64 = 1;
/// Where the built-in run leaves its results when no folder is named.
const DEMO_OUTPUT: &str = "squad_4node_output";

/// The run's arguments, with the built-in run's own defaults where nothing else was said.
pub(crate) struct Job {
    demo: bool,
    model: PathBuf,
    tokenizer: PathBuf,
    train: Option<PathBuf>,
    dev: Option<PathBuf>,
    test: Option<PathBuf>,
    pub(crate) output: PathBuf,
    pub(crate) windows: Windows,
    bf16: bool,
    micro_batch: usize,
    epochs: f64,
    learning_rate: f64,
    /// Built-in data of a rank on another machine than rank 0; goes with the rank.
    temporary: Option<PathBuf>,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.remove_temporary();
    }
}

impl Job {
    fn remove_temporary(&mut self) {
        if let Some(folder) = self.temporary.take() {
            // What is left in a temporary folder harms nobody.
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    fn new(args: &Args, launch: &Launch) -> Result<Job, Failure> {
        let windows = Windows {
            max_length: args.max_seq_length,
            stride: args.doc_stride,
            cut_questions: args.long_questions == LongQuestions::Truncate,
        };
        if args.demo() {
            let output = output_of(args);
            // The ranks of one machine share the folder that rank 0 has written.
            let own = launch.machine_size == launch.world_size || launch.rank == 0;
            let folder = if own {
                output.join("demo")
            } else {
                std::env::temp_dir().join(format!("azulejo-demo-{}", std::process::id()))
            };
            if !own {
                let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
                made.map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
                write_demo(&folder)?;
            }
            let encoder = folder.join("encoder");
            let (train, dev) = (folder.join("train.json"), folder.join("dev.json"));
            let pick = |flag: &str, given: f64, own: f64| if args.given(flag) { given } else { own };
            return Ok(Job {
                demo: true,
                tokenizer: encoder.clone(),
                model: encoder,
                train: Some(train),
                dev: Some(dev),
                test: None,
                output,
                // Passages of the built-in data have about 100 tokens, and the encoder has 160 positions.
                windows: if args.given("max_seq_length") {
                    windows
                } else {
                    Windows {
                        max_length: 160,
                        stride: 64,
                        ..windows
                    }
                },
                bf16: true,
                micro_batch: pick(
                    "per_device_train_batch_size",
                    args.per_device_train_batch_size as f64,
                    4.0,
                ) as usize,
                epochs: pick("num_train_epochs", args.num_train_epochs, 2.0),
                learning_rate: pick("learning_rate", args.learning_rate, 5e-4),
                temporary: (!own).then_some(folder),
            });
        }
        let sources = Sources::find(args, launch.rank == 0)?;
        Ok(Job {
            demo: false,
            tokenizer: sources.tokenizer,
            model: sources.model,
            train: sources.train,
            dev: sources.dev,
            test: sources.test,
            output: args.output_dir.clone().ok_or("no --output_dir")?,
            windows,
            bf16: args.bf16,
            micro_batch: args.per_device_train_batch_size,
            epochs: args.num_train_epochs,
            learning_rate: args.learning_rate,
            temporary: None,
        })
    }
}

/// Where the results go.
fn output_of(args: &Args) -> PathBuf {
    args.output_dir.clone().unwrap_or_else(|| DEMO_OUTPUT.into())
}

/// What rank 0 does before anybody reads: refuses to train into a folder with something else in it, and writes the
/// built-in data.
fn prepare(args: &Args) -> Result<(), Failure> {
    let output = output_of(args);
    let training = (args.demo() || args.do_train) && !args.overwrite_output_dir && args.resume() == Resume::No;
    let own_default = args.demo() && args.output_dir.is_none();
    if training && !own_default {
        let mut entries = match std::fs::read_dir(&output) {
            Ok(entries) => Some(entries),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(format!("output folder {}: {e}", output.display()).into()),
        };
        let other = |entry: std::io::Result<std::fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() != "demo");
        if entries.as_mut().is_some_and(|entries| entries.any(other)) {
            return Err(format!(
                "the output folder {} is not empty: use --overwrite_output_dir to write into it, or \
                 --resume_from_checkpoint to go on from a checkpoint in it",
                output.display()
            )
            .into());
        }
    }
    if args.demo() {
        write_demo(&output.join("demo"))?;
    }
    Ok(())
}

/// Whether results will find their place, asked before hours are spent on them. Leaves nothing behind.
fn check_writable(output: &Path) -> Result<(), Failure> {
    let mut folder = Folder::open(output)?;
    Ok(folder.add("results", |_| Ok(()))?)
}

fn write_demo(folder: &Path) -> Result<(), Failure> {
    let files = demo::write_dataset(folder, DEMO_SEED).and_then(|_| demo::unpack_encoder(&folder.join("encoder")));
    files.map_err(|e| format!("cannot write the built-in data: {e}").into())
}

/// Runs this rank; the status to exit with.
pub(crate) fn run(args: &Args, launch: &Launch) -> Result<i32, Failure> {
    let interrupt = Interrupt::listen()?;
    if args.master_port.is_some() && launch.rank == 0 && args.hostfile.is_none() {
        complain!("warning: --master_port has no effect: processes on one machine meet without a fixed port");
    }
    let place = Place::of(launch)?;
    let defaults = Options::default();
    let options = Options {
        deadline: args.deadline().unwrap_or(DEADLINE),
        join_deadline: args.deadline().unwrap_or(defaults.join_deadline),
        backend: match args.ddp_backend {
            Some(Asked::Mpi) => Backend::Mpi,
            Some(Asked::Ccl | Asked::Gloo) => Backend::Hybrid,
            None => Backend::Automatic,
        },
        start_hook: Some(place.worker_hook()),
        ..defaults
    };
    let comm = connect(launch, &options)?;
    let prepared = if launch.rank == 0 { prepare(args) } else { Ok(()) };
    agree(&comm, prepared)?;
    let job = agree(&comm, Job::new(args, launch))?;
    show_places(&comm, launch, &place)?;
    preparation_threads(args.preprocessing_num_workers, &place.cpus());
    let exec = TeamExecutor(Team::new(place.team())?);
    let rank = Rank {
        args,
        job,
        comm,
        exec,
        interrupt,
    };
    rank.run()
}

/// Goes on only if all ranks do. What is wrong is said once, by rank 0, with the ranks that have found it.
fn agree<T>(comm: &Communicator, own: Result<T, Failure>) -> Result<T, Failure> {
    let text = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let texts = comm.all_gather_bytes(text.as_bytes())?;
    if texts.iter().all(Vec::is_empty) {
        return own;
    }
    if comm.rank() == 0 {
        let mut said = Vec::new();
        for text in texts.iter().filter(|text| !text.is_empty()) {
            if said.contains(&text) {
                continue;
            }
            said.push(text);
            let ranks: Vec<String> = (0..texts.len())
                .filter(|&rank| &texts[rank] == text)
                .map(|rank| rank.to_string())
                .collect();
            // Rank 0 speaks for all where it has found the same.
            let who = if &texts[0] == text {
                String::new()
            } else {
                format!("rank {}: ", ranks.join(", "))
            };
            complain!("error: {who}{}", String::from_utf8_lossy(text));
        }
    }
    Err(Told.into())
}

/// Rank 0 prints where every rank computes.
fn show_places(comm: &Communicator, launch: &Launch, place: &Place) -> Result<(), Failure> {
    let node = launch.rank / launch.local_size.max(1);
    let line = format!(
        "rank {} (node {node}, local rank {}): {}",
        launch.rank,
        launch.local_rank,
        place.line()
    );
    if let Some(lines) = comm.gather_bytes(line.as_bytes(), 0)? {
        say!("{}", place.table);
        if lines.len() > 1 {
            say!("{} ranks over {}:", lines.len(), comm.transport());
        }
        lines
            .iter()
            .for_each(|line| say!("  {}", String::from_utf8_lossy(line)));
    }
    Ok(())
}

pub(crate) struct Rank<'a> {
    pub(crate) args: &'a Args,
    pub(crate) job: Job,
    pub(crate) comm: Communicator,
    pub(crate) exec: TeamExecutor,
    pub(crate) interrupt: Interrupt,
}

/// What a run reads, all of it before it computes: a mistake in the evaluation data must not cost a training run.
struct Inputs {
    tokenizer: Tokenizer,
    model: Model,
    train: Option<Questions>,
    /// To evaluate, then to predict.
    asked: Vec<(Purpose, Questions)>,
}

/// A data set and its windows.
pub(crate) struct Questions {
    pub(crate) set: DataSet,
    pub(crate) features: Vec<Feature>,
}

impl Rank<'_> {
    pub(crate) fn root(&self) -> bool {
        self.comm.rank() == 0
    }

    fn run(mut self) -> Result<i32, Failure> {
        let tokenizer = agree(
            &self.comm,
            Tokenizer::from_folder(&self.job.tokenizer).map_err(Failure::from),
        )?;
        self.limit_windows(&tokenizer);
        let inputs = agree(&self.comm, self.inputs(tokenizer))?;
        self.job.remove_temporary();
        let writable = if self.root() {
            check_writable(&self.job.output)
        } else {
            Ok(())
        };
        agree(&self.comm, writable)?;
        let Inputs {
            tokenizer,
            mut model,
            train,
            asked,
        } = inputs;
        let mut summary = Summary::default();
        if let Some(questions) = &train {
            let dev = asked.iter().find(|(purpose, _)| *purpose == Purpose::Evaluate);
            let dev = dev.map(|(_, questions)| questions);
            self.interrupt.hold();
            let outcome = self.train(questions, dev, &tokenizer, &mut model, &mut summary)?;
            let interrupted = self.interrupt.release();
            if outcome.stopped || interrupted {
                if self.root() {
                    let output = self.job.output.display();
                    match outcome.stopped {
                        true => complain!(
                            "stopped after step {}: a checkpoint was saved in {output}",
                            outcome.steps
                        ),
                        false => complain!("stopped after training: the model was saved in {output}"),
                    }
                }
                return Ok(INTERRUPTED);
            }
        }
        if !asked.is_empty() && self.args.bf16_full_eval && !self.job.bf16 {
            let mut rounded = Model::new(model.config().clone(), Head::QuestionAnswering, Precision::Bf16)?;
            rounded.update(&self.exec, |to| to.copy_from_slice(model.weights()))?;
            model = rounded;
        }
        for (purpose, questions) in &asked {
            self.answer_and_write(*purpose, questions, &model, &mut summary)?;
            if self.interrupt.asked() {
                return Ok(INTERRUPTED);
            }
        }
        if self.root() && summary.train.is_some() {
            let base = if self.job.demo {
                "the encoder that ships with azulejo".into()
            } else {
                let name = self.args.model_name_or_path.clone().unwrap_or_default();
                name.display().to_string()
            };
            let ranks = self.comm.world_size();
            summary.records.write(self.args, &self.job.output, &base, ranks)?;
        }
        let peaks = self.comm.gather_bytes(&peak_memory_mib().to_le_bytes(), 0)?;
        if let Some(peaks) = peaks {
            summary.print(&self, &model, &peaks);
        }
        Ok(0)
    }

    /// Windows are no longer than the tokenizer says that the model can take.
    fn limit_windows(&mut self, tokenizer: &Tokenizer) {
        let asked = self.job.windows.max_length;
        if let Some(limit) = tokenizer.max_length().filter(|&limit| limit < asked) {
            if self.root() {
                complain!(
                    "warning: --max_seq_length {asked} is more than the model's {limit} tokens: windows have {limit}"
                );
            }
            self.job.windows.max_length = limit;
        }
    }

    fn inputs(&self, tokenizer: Tokenizer) -> Result<Inputs, Failure> {
        let model = self.load()?;
        let (positions, longest) = (model.config().positions, self.job.windows.max_length);
        if longest > positions {
            return Err(format!(
                "--max_seq_length {longest} is more than the {positions} positions of the model in {}",
                self.job.model.display()
            )
            .into());
        }
        let (tokens, rows) = (tokenizer.vocabulary(), model.config().vocabulary);
        if tokens > rows {
            return Err(format!(
                "the tokenizer in {} has {tokens} tokens, but the model in {} has embeddings for {rows}",
                self.job.tokenizer.display(),
                self.job.model.display()
            )
            .into());
        }
        let train = match &self.job.train {
            Some(file) => Some(self.training_questions(file, &tokenizer)?),
            None => None,
        };
        let files = [
            (Purpose::Evaluate, &self.job.dev, self.args.max_eval_samples),
            (Purpose::Predict, &self.job.test, self.args.max_predict_samples),
        ];
        let mut asked = Vec::new();
        for (purpose, file, limit) in files {
            if let Some(file) = file {
                asked.push((purpose, self.questions(purpose, file, &tokenizer, limit)?));
            }
        }
        Ok(Inputs {
            tokenizer,
            model,
            train,
            asked,
        })
    }

    fn load(&self) -> Result<Model, Failure> {
        let config = match &self.args.config_name {
            None => checkpoint::load_config(&self.job.model)?,
            Some(path) => checkpoint::load_config(path)?,
        };
        // Before memory is asked for: a configuration that lies can ask for any amount.
        checkpoint::check_weights(&self.job.model, &Params::new(&config, Head::QuestionAnswering))?;
        let precision = if self.job.bf16 { Precision::Bf16 } else { Precision::F32 };
        let mut model = Model::new(config, Head::QuestionAnswering, precision)?;
        let mut weights = model.params().initialise(model.config(), self.args.seed);
        let report = checkpoint::load_weights(&self.job.model, model.params(), &mut weights)?;
        model.update(&self.exec, |to| to.copy_from_slice(&weights))?;
        if self.root() {
            say!(
                "{}: {} parameters, {}",
                self.job.model.display(),
                weights.len(),
                model.kernel_name()
            );
            if !report.new.is_empty() {
                say!("  new, to be trained: {}", report.new.join(", "));
            }
            if !report.unused.is_empty() {
                say!("  not used: {}", report.unused.join(", "));
            }
        }
        Ok(model)
    }

    pub(crate) fn read(&self, file: &Path) -> Result<DataSet, Failure> {
        let mut set = DataSet::read(file)?;
        let moved = if self.args.realign_answers {
            set.realign_answers()
        } else {
            0
        };
        if self.root() && self.args.log_level < LogLevel::Error {
            if moved > 0 {
                let file = file.display();
                complain!("warning: {file}: {moved} answers were moved to where their text stands");
            }
            set.notes
                .lines()
                .iter()
                .for_each(|line| complain!("warning: {}: {line}", file.display()));
        }
        Ok(set)
    }

    fn training_questions(&self, file: &Path, tokenizer: &Tokenizer) -> Result<Questions, Failure> {
        let args = self.args;
        let mut set = self.read(file)?;
        set.check_for_training(args.version_2_with_negative)?;
        if let Some(limit) = args.max_train_samples {
            set.examples.truncate(limit);
        }
        let mut features = training_features(&set, tokenizer, &self.job.windows)?;
        if let Some(limit) = args.max_train_samples {
            features.truncate(limit);
        }
        if args.dataloader_drop_last && features.len() < self.job.micro_batch {
            return Err(format!(
                "{}: its {} windows do not fill one batch of {}, and --dataloader_drop_last leaves them out",
                file.display(),
                features.len(),
                self.job.micro_batch
            )
            .into());
        }
        Ok(Questions { set, features })
    }

    fn train(
        &self,
        questions: &Questions,
        dev: Option<&Questions>,
        tokenizer: &Tokenizer,
        model: &mut Model,
        summary: &mut Summary,
    ) -> Result<Outcome, Failure> {
        let args = self.args;
        let Questions { set, features } = questions;
        let sampler = Sampler {
            samples: features.len(),
            micro_batch: self.job.micro_batch,
            micro_batches_per_step: self.comm.world_size() * args.gradient_accumulation_steps,
            seed: args.data_seed.unwrap_or(args.seed),
            drop_last: args.dataloader_drop_last,
            lengths: args
                .group_by_length
                .then(|| features.iter().map(|feature| feature.len() as u32).collect()),
        };
        let steps = total_steps(&sampler, self.job.epochs, args.max_steps().map_or(-1, |n| n as i64));
        let warmup = if self.job.demo && !args.given("warmup_ratio") && !args.given("warmup_steps") {
            steps / 10
        } else {
            args.warmup(steps)
        };
        let every = |steps| Every { steps, last: false };
        let epochs = Every {
            steps: sampler.steps_per_epoch() as u64,
            last: true,
        };
        let config = TrainConfig {
            steps,
            learning_rate: LearningRate {
                schedule: args.schedule()?,
                peak: self.job.learning_rate,
                warmup,
                total: steps,
            },
            seed: args.seed,
            logging: match args.logging_strategy {
                When::No => Every::NEVER,
                When::Steps => every(args.logging_steps(steps)),
                When::Epoch => epochs,
            },
            evaluation: match args.eval_strategy {
                When::No => Every::NEVER,
                When::Steps => every(args.eval_steps(steps)),
                When::Epoch => epochs,
            },
            eval_delay: match args.eval_strategy {
                When::Epoch => (args.eval_delay * epochs.steps as f64).ceil() as u64,
                _ => args.eval_delay.ceil() as u64,
            },
            eval_on_start: args.eval_on_start,
            // As there, with a strategy there is a checkpoint of the last step.
            saving: match args.save_strategy {
                When::No => Every::NEVER,
                When::Steps if self.job.demo && !args.given("save_steps") && !args.load_best_model_at_end => {
                    Every::NEVER
                }
                When::Steps => Every {
                    last: true,
                    ..every(args.save_steps(steps))
                },
                When::Epoch => epochs,
            },
            sampler,
        };
        let settings = Settings {
            variant: match args.optim {
                Optimiser::AdamwTorch => Variant::Torch,
                Optimiser::AdamwHf => Variant::Hf,
            },
            beta1: args.adam_beta1,
            beta2: args.adam_beta2,
            eps: args.adam_epsilon,
            weight_decay: args.weight_decay,
            max_grad_norm: args.max_grad_norm,
        };
        let mut optimizer = AdamW::new(settings, model.params());
        let records = &mut summary.records;
        let resumed = agree(&self.comm, self.resume(model, &mut optimizer, &config))?;
        if let Some((path, state)) = resumed {
            records.history = History::of(&state);
            records.step = optimizer.steps();
            if self.root() {
                say!("going on from {}, after step {}", path.display(), optimizer.steps());
            }
        }
        if self.root() {
            say!(
                "training on {} windows of {} questions: {} steps of {} x {} samples, {} x {}, learning rate {}",
                features.len(),
                set.len(),
                steps,
                config.sampler.micro_batches_per_step,
                config.sampler.micro_batch,
                self.comm.world_size(),
                args.gradient_accumulation_steps,
                self.job.learning_rate
            );
        }
        if self.root() {
            records.begin(args, &self.job.output, model)?;
        }
        let mut watch = Watch {
            rank: self,
            meter: Meter::new("train", steps, self.root(), !args.disable_tqdm),
            dev,
            judged: None,
            config: &config,
            tokenizer,
            records,
            flos_per_token: 6.0 * weights_without_tables(model) as f64,
        };
        let products = model.product_time();
        let outcome = train(
            &self.exec,
            &self.comm,
            model,
            &mut optimizer,
            features,
            &config,
            &mut watch,
        )?;
        watch.meter.finish();
        summary.products = model.product_time() - products;
        summary.train = Some(outcome);
        if args.load_best_model_at_end && !outcome.stopped {
            self.load_best(model, summary.records.history.best.as_ref())?;
        }
        if self.root() && !outcome.stopped {
            self.save_training(tokenizer, model, &config, &outcome, features, &mut summary.records)?;
        }
        Ok(outcome)
    }

    /// Goes back to the checkpoint that was asked for; its folder and what its state file says.
    fn resume(
        &self,
        model: &mut Model,
        optimizer: &mut AdamW,
        config: &TrainConfig,
    ) -> Result<Option<(PathBuf, Value)>, Failure> {
        let path = match self.args.resume() {
            Resume::No => return Ok(None),
            Resume::From(path) => path,
            Resume::Last => resume::last(&self.job.output)
                .ok_or_else(|| format!("no checkpoint to go on from in {}", self.job.output.display()))?,
        };
        let state = resume::load(&path, &self.exec, model, optimizer, config)?;
        Ok(Some((path, state)))
    }

    /// All ranks go back to the best checkpoint, which rank 0 knows and reads.
    fn load_best(&self, model: &mut Model, best: Option<&Best>) -> Result<(), Failure> {
        let mut weights = model.weights().to_vec();
        let found = match best {
            Some(best) => checkpoint::load_weights(&best.checkpoint, model.params(), &mut weights).map(|_| true),
            None => Ok(false),
        };
        let found = agree(&self.comm, found.map_err(Failure::from))?;
        let mut found = [u8::from(found)];
        self.comm.broadcast(&mut found, 0)?;
        if found == [0] {
            if self.root() {
                complain!("warning: no evaluation fell on a checkpoint: the last model is the result");
            }
            return Ok(());
        }
        if let Some(best) = best {
            say!(
                "the best checkpoint is the result: {}, {} {:.2}",
                best.checkpoint.display(),
                self.args.metric(),
                best.metric
            );
        }
        self.comm.broadcast(&mut weights, 0)?;
        Ok(model.update(&self.exec, |to| to.copy_from_slice(&weights))?)
    }

    fn save_training(
        &self,
        tokenizer: &Tokenizer,
        model: &Model,
        config: &TrainConfig,
        outcome: &Outcome,
        features: &[Feature],
        records: &mut Records,
    ) -> Result<(), Failure> {
        let seconds = outcome.elapsed.as_secs_f64();
        let metrics = json!({
            "epoch": self.epoch(config, outcome.steps),
            "total_flos": records.history.total_flos,
            "train_loss": outcome.mean_loss,
            "train_runtime": rounded(seconds, 4),
            "train_samples_per_second": rounded(outcome.samples as f64 / seconds, 3),
            "train_steps_per_second": rounded(outcome.steps as f64 / seconds, 3),
        });
        let mut metrics = match metrics {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        let mut entry = metrics.clone();
        entry.insert("step".into(), outcome.steps.into());
        records.log(Value::Object(entry));
        metrics.insert("train_samples".into(), features.len().into());

        let mut folder = Folder::open(&self.job.output)?;
        checkpoint::save_into(
            &mut folder,
            model.config(),
            model.params(),
            model.weights(),
            Some(tokenizer),
        )?;
        let state = python_json(&resume::state(outcome.steps, config, &records.history), 2, true) + "\n";
        folder.add("trainer_state.json", |out| {
            std::io::Write::write_all(out, state.as_bytes())
        })?;
        let arguments = arguments(self.args) + "\n";
        folder.add("training_args.json", |out| {
            std::io::Write::write_all(out, arguments.as_bytes())
        })?;
        folder.commit()?;
        Ok(save_metrics(&self.job.output, "train", &metrics)?)
    }

    fn epoch(&self, config: &TrainConfig, steps: u64) -> f64 {
        steps as f64 / config.sampler.steps_per_epoch() as f64
    }
}

/// What rank 0 says at the end.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) records: Records,
    train: Option<Outcome>,
    products: Duration,
    /// Exact match and F1.
    pub(crate) scores: Vec<(Purpose, f64, f64)>,
    /// Windows and time.
    pub(crate) answered: Vec<(Purpose, usize, Duration)>,
}

impl Summary {
    fn print(&self, rank: &Rank, model: &Model, peaks: &[Vec<u8>]) {
        say!("summary");
        for &(purpose, exact, f1) in &self.scores {
            let of = if purpose == Purpose::Predict {
                " (prediction)"
            } else {
                ""
            };
            say!("  exact match            {exact:.2}{of}");
            say!("  F1                     {f1:.2}{of}");
        }
        if let Some(run) = &self.train {
            let seconds = run.elapsed.as_secs_f64();
            let share = |part: Duration| 100.0 * part.as_secs_f64() / seconds;
            let (products, waited) = (share(self.products), share(run.waited));
            say!(
                "  training               {seconds:.1} s, mean loss {:.4}",
                run.mean_loss
            );
            say!("  samples per second     {:.1}", run.samples as f64 / seconds);
            say!("  tokens per second      {:.0}", run.tokens as f64 / seconds);
            say!(
                "  share of time          {products:.1} % products and attention, {waited:.1} % waiting for communication, \
                 {:.1} % the rest (of it {:.1} % optimiser, {:.1} % batches)",
                100.0 - products - waited,
                share(run.optimizing),
                share(run.batching)
            );
        }
        for &(purpose, windows, elapsed) in &self.answered {
            let what = match purpose {
                Purpose::Evaluate => "evaluation",
                Purpose::Predict => "prediction",
            };
            say!(
                "  {what}             {windows} windows in {:.1} s",
                elapsed.as_secs_f64()
            );
        }
        say!("  kernel                 {}", model.kernel_name());
        let peaks: Vec<String> = peaks
            .iter()
            .map(|bytes| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes).to_string())
            .collect();
        say!("  peak memory of ranks   {} MiB", peaks.join(", "));
        say!("  results                {}", rank.job.output.display());
    }
}

/// Parameters without the tables of the embeddings, of which a token uses one row.
fn weights_without_tables(model: &Model) -> usize {
    let tables = |name: &str| name.ends_with("_embeddings.weight");
    let others = model.params().iter().filter(|p| !tables(&p.name));
    others.map(|p| p.len()).sum()
}

/// The most memory that this process has had in use.
fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
