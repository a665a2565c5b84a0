//! One rank: finds its place, joins the others, loads, trains, evaluates, saves, reports.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use azulejo_bert::checkpoint::{self, Folder};
use azulejo_bert::features::Feature;
use azulejo_bert::model::Model;
use azulejo_bert::optim::{AdamW, Settings, Variant};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use azulejo_bert::results::{python_json, rounded, save_metrics};
use azulejo_bert::runtime::TeamExecutor;
use azulejo_bert::sampler::Sampler;
use azulejo_bert::schedule::LearningRate;
use azulejo_bert::squad::features::{Windows, evaluation_features, training_features};
use azulejo_bert::squad::metrics::{NoAnswer, score, score_v2};
use azulejo_bert::squad::postprocess::{Choice, answers, n_best_predictions, null_odds, predictions};
use azulejo_bert::squad::read::DataSet;
use azulejo_bert::tokenizer::Tokenizer;
use azulejo_bert::trainer::{Outcome, TrainConfig, total_steps, train};
use azulejo_bert::{evaluate, resume};
use azulejo_collectives::launch::Launch;
use azulejo_collectives::{Backend, Communicator, Options, connect};
use azulejo_examples::demo;
use azulejo_topology::Team;
use serde_json::{Map, Value, json};

use crate::args::{Args, Backend as Asked, Optimiser, Resume, When};
use crate::place::Place;
use crate::progress::{Meter, Watch};
use crate::{DEADLINE, Failure};

/// Seed of the built-in data; `--seed` is that of training.
const DEMO_SEED: u64 = 1;
/// Where the built-in run leaves its results when no folder is named.
const DEMO_OUTPUT: &str = "squad_4node_output";

/// The run's arguments, with the built-in run's own defaults where nothing else was said.
struct Job {
    demo: bool,
    model: PathBuf,
    tokenizer: PathBuf,
    train: Option<PathBuf>,
    dev: Option<PathBuf>,
    output: PathBuf,
    windows: Windows,
    bf16: bool,
    micro_batch: usize,
    epochs: f64,
    learning_rate: f64,
    /// Built-in data of a rank that shares no folder with rank 0; goes with the rank.
    temporary: Option<PathBuf>,
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(folder) = &self.temporary {
            // What is left in a temporary folder harms nobody.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Job {
    fn new(args: &Args, launch: &Launch) -> Result<Job, Failure> {
        let windows = Windows {
            max_length: args.max_seq_length,
            stride: args.doc_stride,
        };
        if args.demo() {
            let output = args.output_dir.clone().unwrap_or_else(|| DEMO_OUTPUT.into());
            let own = launch.rank == 0;
            let folder = if own {
                output.join("demo")
            } else {
                std::env::temp_dir().join(format!("azulejo-demo-{}", std::process::id()))
            };
            let encoder = folder.join("encoder");
            let files = demo::write_dataset(&folder, DEMO_SEED).and_then(|files| {
                demo::unpack_encoder(&encoder)?;
                Ok(files)
            });
            let (train, dev) =
                files.map_err(|e| format!("cannot write the built-in data to {}: {e}", folder.display()))?;
            let pick = |flag: &str, given: f64, own: f64| if args.given(flag) { given } else { own };
            return Ok(Job {
                demo: true,
                tokenizer: encoder.clone(),
                model: encoder,
                train: Some(train),
                dev: Some(dev),
                output,
                // Passages of the built-in data have about 100 tokens.
                windows: if args.given("max_seq_length") {
                    windows
                } else {
                    Windows {
                        max_length: 192,
                        stride: 64,
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
        if let Some(name) = &args.dataset_name {
            return Err(format!(
                "--dataset_name {name}: data sets are not downloaded yet; give --train_file and --validation_file"
            )
            .into());
        }
        let model = args.model_name_or_path.clone().ok_or("no --model_name_or_path")?;
        Ok(Job {
            demo: false,
            tokenizer: args.tokenizer_name.clone().unwrap_or_else(|| model.clone()),
            model,
            train: args.train_file.clone().filter(|_| args.do_train),
            dev: args.validation_file.clone().filter(|_| args.do_eval),
            output: args.output_dir.clone().ok_or("no --output_dir")?,
            windows,
            bf16: args.bf16,
            micro_batch: args.per_device_train_batch_size,
            epochs: args.num_train_epochs,
            learning_rate: args.learning_rate,
            temporary: None,
        })
    }

    /// Refuses to train into a folder with something else in it.
    fn check_output(&self, args: &Args) -> Result<(), Failure> {
        let training = self.train.is_some() && !args.overwrite_output_dir && args.resume() == Resume::No;
        let own_default = self.demo && args.output_dir.is_none();
        if !training || own_default {
            return Ok(());
        }
        let mut entries = match std::fs::read_dir(&self.output) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(format!("output folder {}: {e}", self.output.display()).into()),
        };
        if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "demo")) {
            return Err(format!(
                "the output folder {} is not empty: use --overwrite_output_dir to write into it, or \
                 --resume_from_checkpoint to go on from a checkpoint in it",
                self.output.display()
            )
            .into());
        }
        Ok(())
    }
}

/// Runs this rank; the status to exit with.
pub(crate) fn run(args: &Args, launch: &Launch) -> Result<i32, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    // The second Ctrl-C ends the process at once, the first one asks the run to stop.
    signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, 130, interrupted.clone())?;
    signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone())?;
    if args.master_port.is_some() && launch.rank == 0 && args.hostfile.is_none() {
        eprintln!("warning: --master_port has no effect: processes on one machine meet without a fixed port");
    }

    let root = launch.rank == 0;
    let place = Place::of(launch)?;
    let options = Options {
        deadline: args.deadline().unwrap_or(DEADLINE),
        backend: match args.ddp_backend {
            Some(Asked::Mpi) => Backend::Mpi,
            Some(Asked::Ccl | Asked::Gloo) => Backend::Hybrid,
            None => Backend::Automatic,
        },
        ..Options::default()
    };
    let job = Job::new(args, launch);
    let checked = job.and_then(|job| job.check_output(args).map(|()| job));
    // Ranks other than 0 have nothing to add to what rank 0 says about arguments.
    let job = match checked {
        Err(e) if root => return Err(e),
        Err(_) => return Ok(1),
        Ok(job) => job,
    };
    let comm = connect(launch, &options)?;
    show_places(&comm, launch, &place)?;
    let exec = TeamExecutor(Team::new(place.team())?);
    let rank = Rank {
        args,
        job,
        comm,
        exec,
        interrupted,
    };
    rank.run()
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
        println!("{}", place.table);
        println!("{} ranks over {}:", lines.len(), comm.transport());
        lines
            .iter()
            .for_each(|line| println!("  {}", String::from_utf8_lossy(line)));
    }
    Ok(())
}

struct Rank<'a> {
    args: &'a Args,
    job: Job,
    comm: Communicator,
    exec: TeamExecutor,
    interrupted: Arc<AtomicBool>,
}

impl Rank<'_> {
    fn root(&self) -> bool {
        self.comm.rank() == 0
    }

    fn run(self) -> Result<i32, Failure> {
        let tokenizer = Tokenizer::from_folder(&self.job.tokenizer)?;
        let mut model = self.load()?;
        let mut summary = Summary::default();
        if let Some(file) = &self.job.train {
            let outcome = self.train(file, &tokenizer, &mut model, &mut summary)?;
            if outcome.stopped {
                if self.root() {
                    eprintln!(
                        "stopped after step {}: a checkpoint was saved in {}",
                        outcome.steps,
                        self.job.output.display()
                    );
                }
                return Ok(130);
            }
        }
        if let Some(file) = &self.job.dev {
            self.evaluate(file, &tokenizer, &model, &mut summary)?;
        }
        let peaks = self.comm.gather_bytes(&peak_memory_mib().to_le_bytes(), 0)?;
        if let Some(peaks) = peaks {
            summary.print(&self, &model, &peaks);
        }
        Ok(0)
    }

    fn load(&self) -> Result<Model, Failure> {
        let config = match &self.args.config_name {
            None => checkpoint::load_config(&self.job.model)?,
            Some(path) if path.is_file() => checkpoint::load_config(path.parent().unwrap_or(Path::new(".")))?,
            Some(path) => checkpoint::load_config(path)?,
        };
        let precision = if self.job.bf16 { Precision::Bf16 } else { Precision::F32 };
        let mut model = Model::new(config, Head::QuestionAnswering, precision)?;
        let mut weights = model.params().initialise(model.config(), self.args.seed);
        let report = checkpoint::load_weights(&self.job.model, model.params(), &mut weights)?;
        model.update(&self.exec, |to| to.copy_from_slice(&weights))?;
        if self.root() {
            println!(
                "{}: {} parameters, {}",
                self.job.model.display(),
                weights.len(),
                model.kernel_name()
            );
            if !report.new.is_empty() {
                println!("  new, to be trained: {}", report.new.join(", "));
            }
            if !report.unused.is_empty() {
                println!("  not used: {}", report.unused.join(", "));
            }
        }
        Ok(model)
    }

    fn read(&self, file: &Path) -> Result<DataSet, Failure> {
        let set = DataSet::read(file)?;
        if self.root() {
            set.notes
                .lines()
                .iter()
                .for_each(|line| eprintln!("warning: {}: {line}", file.display()));
        }
        Ok(set)
    }

    fn train(
        &self,
        file: &Path,
        tokenizer: &Tokenizer,
        model: &mut Model,
        summary: &mut Summary,
    ) -> Result<Outcome, Failure> {
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
        let sampler = Sampler {
            samples: features.len(),
            micro_batch: self.job.micro_batch,
            micro_batches_per_step: self.comm.world_size() * args.gradient_accumulation_steps,
            seed: args.data_seed.unwrap_or(args.seed),
            drop_last: args.dataloader_drop_last,
        };
        let steps = total_steps(&sampler, self.job.epochs, args.max_steps().map_or(-1, |n| n as i64));
        let warmup = if self.job.demo && !args.given("warmup_ratio") && !args.given("warmup_steps") {
            steps / 10
        } else {
            args.warmup(steps)
        };
        let config = TrainConfig {
            steps,
            learning_rate: LearningRate {
                schedule: args.lr_scheduler_type.parse()?,
                peak: self.job.learning_rate,
                warmup,
                total: steps,
            },
            seed: args.seed,
            logging_steps: match args.logging_strategy {
                When::No => 0,
                When::Steps => args.logging_steps(steps),
                When::Epoch => sampler.steps_per_epoch() as u64,
            },
            save_steps: match args.save_strategy {
                When::No => 0,
                When::Steps if self.job.demo && !args.given("save_steps") => 0,
                When::Steps => args.save_steps(steps),
                When::Epoch => sampler.steps_per_epoch() as u64,
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
        if self.root() && args.eval_strategy != When::No {
            let when = match args.eval_strategy {
                When::Steps => format!("every {} steps", args.eval_steps(steps)),
                _ => "after every epoch".into(),
            };
            eprintln!("warning: evaluation runs once, after training, and not {when} as --eval_strategy asks");
        }
        let mut optimizer = AdamW::new(settings, model.params());
        let from = match args.resume() {
            Resume::No => None,
            Resume::From(path) => Some(path),
            Resume::Last => match resume::last(&self.job.output) {
                Some(path) => Some(path),
                None => return Err(format!("no checkpoint to go on from in {}", self.job.output.display()).into()),
            },
        };
        let mut log_history = Vec::new();
        if let Some(path) = from {
            let state = resume::load(&path, &self.exec, model, &mut optimizer, &config)?;
            log_history = state["log_history"].as_array().cloned().unwrap_or_default();
            if self.root() {
                println!("going on from {}, after step {}", path.display(), optimizer.steps());
            }
        }
        if self.root() {
            println!(
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
        let mut watch = Watch {
            meter: Meter::new("train", steps, self.root(), !args.disable_tqdm),
            interrupted: self.interrupted.clone(),
            output: self.root().then(|| self.job.output.clone()),
            keep: args.save_total_limit,
            config: &config,
            tokenizer,
            log_history,
            saved: Vec::new(),
        };
        let products = model.product_time();
        let outcome = train(
            &self.exec,
            &self.comm,
            model,
            &mut optimizer,
            &features,
            &config,
            &mut watch,
        )?;
        watch.meter.finish();
        summary.products = model.product_time() - products;
        summary.train = Some(outcome);
        if self.root() && !outcome.stopped {
            self.save_training(tokenizer, model, &config, &outcome, &features, &watch.log_history)?;
        }
        Ok(outcome)
    }

    fn save_training(
        &self,
        tokenizer: &Tokenizer,
        model: &Model,
        config: &TrainConfig,
        outcome: &Outcome,
        features: &[Feature],
        log_history: &[Value],
    ) -> Result<(), Failure> {
        let mut folder = Folder::open(&self.job.output)?;
        checkpoint::save_into(
            &mut folder,
            model.config(),
            model.params(),
            model.weights(),
            Some(tokenizer),
        )?;
        let state = python_json(&resume::state(outcome.steps, config, log_history), 2, true) + "\n";
        folder.add("trainer_state.json", |out| {
            std::io::Write::write_all(out, state.as_bytes())
        })?;
        folder.commit()?;
        let seconds = outcome.elapsed.as_secs_f64();
        let metrics = json!({
            "epoch": self.epoch(config, outcome.steps),
            "train_loss": outcome.mean_loss,
            "train_runtime": rounded(seconds, 4),
            "train_samples": features.len(),
            "train_samples_per_second": rounded(outcome.samples as f64 / seconds, 3),
            "train_steps_per_second": rounded(outcome.steps as f64 / seconds, 3),
        });
        self.metrics("train", metrics)
    }

    fn epoch(&self, config: &TrainConfig, steps: u64) -> f64 {
        steps as f64 / config.sampler.steps_per_epoch() as f64
    }

    fn metrics(&self, split: &str, metrics: Value) -> Result<(), Failure> {
        let map = match metrics {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        Ok(save_metrics(&self.job.output, split, &map)?)
    }

    fn evaluate(
        &self,
        file: &Path,
        tokenizer: &Tokenizer,
        model: &Model,
        summary: &mut Summary,
    ) -> Result<(), Failure> {
        let args = self.args;
        let begin = Instant::now();
        let mut set = self.read(file)?;
        if let Some(limit) = args.max_eval_samples {
            set.examples.truncate(limit);
        }
        let features = evaluation_features(&set, tokenizer, &self.job.windows)?;
        let mine = features.len().div_ceil(self.comm.world_size()) as u64;
        let mut meter = Meter::new("evaluate", mine, self.root(), !args.disable_tqdm);
        let found = evaluate::candidates(
            &self.exec,
            &self.comm,
            model,
            &features,
            args.per_device_eval_batch_size,
            args.n_best_size,
            &mut |done, _| meter.at(done as u64, ""),
        )?;
        meter.finish();
        let Some(found) = found else {
            return Ok(());
        };
        let choice = Choice {
            n_best: args.n_best_size,
            max_answer_length: args.max_answer_length,
            null_threshold: args.version_2_with_negative.then_some(args.null_score_diff_threshold),
        };
        let answered = answers(&set, &features, &found, &choice);
        let texts: Vec<(String, String)> = answered.iter().map(|a| (a.id.clone(), a.text.clone())).collect();
        let mut metrics = Map::new();
        if args.version_2_with_negative {
            let scores = score_v2(&set, &texts, &NoAnswer::default());
            summary.scores = Some((scores.all.exact, scores.all.f1));
            metrics.insert("eval_exact".into(), json!(scores.all.exact));
        } else {
            let scores = score(&set, &texts);
            summary.scores = Some((scores.exact_match, scores.f1));
            metrics.insert("eval_exact_match".into(), json!(scores.exact_match));
        }
        let seconds = begin.elapsed().as_secs_f64();
        let batches = features
            .len()
            .div_ceil(args.per_device_eval_batch_size * self.comm.world_size());
        metrics.insert("eval_f1".into(), json!(summary.scores.map_or(0.0, |(_, f1)| f1)));
        metrics.insert("eval_runtime".into(), json!(rounded(seconds, 4)));
        metrics.insert("eval_samples".into(), json!(features.len()));
        metrics.insert(
            "eval_samples_per_second".into(),
            json!(rounded(features.len() as f64 / seconds, 3)),
        );
        metrics.insert(
            "eval_steps_per_second".into(),
            json!(rounded(batches as f64 / seconds, 3)),
        );
        summary.evaluation = Some((features.len(), begin.elapsed()));

        let mut folder = Folder::open(&self.job.output)?;
        let mut files = vec![
            ("eval_predictions.json", predictions(&answered)),
            ("eval_nbest_predictions.json", n_best_predictions(&answered)),
        ];
        if args.version_2_with_negative {
            files.push(("eval_null_odds.json", null_odds(&answered)));
        }
        for (name, value) in files {
            let text = python_json(&value, 4, false) + "\n";
            folder.add(name, |out| std::io::Write::write_all(out, text.as_bytes()))?;
        }
        folder.commit()?;
        self.metrics("eval", Value::Object(metrics))
    }
}

/// What rank 0 says at the end.
#[derive(Default)]
struct Summary {
    train: Option<Outcome>,
    products: Duration,
    scores: Option<(f64, f64)>,
    evaluation: Option<(usize, Duration)>,
}

impl Summary {
    fn print(&self, rank: &Rank, model: &Model, peaks: &[Vec<u8>]) {
        println!("summary");
        if let Some((exact, f1)) = self.scores {
            println!("  exact match            {exact:.2}");
            println!("  F1                     {f1:.2}");
        }
        if let Some(run) = &self.train {
            let seconds = run.elapsed.as_secs_f64();
            let share = |part: Duration| 100.0 * part.as_secs_f64() / seconds;
            let (products, waited) = (share(self.products), share(run.waited));
            println!(
                "  training               {seconds:.1} s, mean loss {:.4}",
                run.mean_loss
            );
            println!("  samples per second     {:.1}", run.samples as f64 / seconds);
            println!("  tokens per second      {:.0}", run.tokens as f64 / seconds);
            println!(
                "  share of time          {products:.1} % products and attention, {waited:.1} % waiting for communication, \
                 {:.1} % the rest (of it {:.1} % optimiser, {:.1} % batches)",
                100.0 - products - waited,
                share(run.optimizing),
                share(run.batching)
            );
        }
        if let Some((windows, elapsed)) = self.evaluation {
            println!(
                "  evaluation             {windows} windows in {:.1} s",
                elapsed.as_secs_f64()
            );
        }
        println!("  kernel                 {}", model.kernel_name());
        let peaks: Vec<String> = peaks
            .iter()
            .map(|bytes| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes).to_string())
            .collect();
        println!("  peak memory of ranks   {} MiB", peaks.join(", "));
        println!("  results                {}", rank.job.output.display());
    }
}

/// The most memory that this process has had in use.
fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
