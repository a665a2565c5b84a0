//! Where the model and the data come from: folders and files here, or the Hugging Face Hub.

use std::path::{Path, PathBuf};

use crate::Failure;
use crate::args::Args;

/// Folders and files on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) model: PathBuf,
    pub(crate) tokenizer: PathBuf,
    pub(crate) train: Option<PathBuf>,
    pub(crate) dev: Option<PathBuf>,
    pub(crate) test: Option<PathBuf>,
}

impl Sources {
    /// Finds everything that the run will read; what is on the Hub only is fetched, and rank 0 (`root`) tells how far it is.
    pub(crate) fn find(args: &Args, root: bool) -> Result<Sources, Failure> {
        let model = args.model_name_or_path.as_deref().ok_or("no --model_name_or_path")?;
        let model = folder(args, model, root)?;
        let tokenizer = match &args.tokenizer_name {
            Some(name) => folder(args, name, root)?,
            None => model.clone(),
        };
        let mut sources = Sources {
            model,
            tokenizer,
            train: args.train_file.clone().filter(|_| args.do_train),
            dev: args.validation_file.clone().filter(|_| args.evaluates()),
            test: args.test_file.clone().filter(|_| args.do_predict),
        };
        if let Some(name) = &args.dataset_name {
            let splits = dataset(args, name, root)?;
            let split = |wanted: bool, split: &str| {
                let found = splits
                    .iter()
                    .find(|(name, _)| name == split)
                    .map(|(_, path)| path.clone());
                match found {
                    None if wanted => Err(format!("--dataset_name {name}: the data set has no split {split}")),
                    found => Ok(found.filter(|_| wanted)),
                }
            };
            // As there, the name goes before files.
            sources.train = split(args.do_train, "train")?;
            sources.dev = split(args.evaluates(), "validation")?;
            sources.test = match sources.test {
                Some(file) => Some(file),
                None => split(args.do_predict, "test")?,
            };
        }
        Ok(sources)
    }
}

/// A model's folder here, or the one that the Hub's cache has under this name.
#[cfg(not(feature = "hub"))]
fn folder(_: &Args, name: &Path, _: bool) -> Result<PathBuf, Failure> {
    if name.is_dir() {
        return Ok(name.to_owned());
    }
    Err(format!(
        "{}: no such folder, and this build does not ask the Hub (feature hub)",
        name.display()
    )
    .into())
}

#[cfg(not(feature = "hub"))]
fn dataset(_: &Args, name: &str, _: bool) -> Result<Vec<(String, PathBuf)>, Failure> {
    Err(format!("--dataset_name {name}: this build does not ask the Hub (feature hub); give --train_file").into())
}

/// A model's folder here, or the one that the Hub's cache has under this name.
#[cfg(feature = "hub")]
fn folder(args: &Args, name: &Path, root: bool) -> Result<PathBuf, Failure> {
    if name.is_dir() {
        return Ok(name.to_owned());
    }
    let name = name.to_str().ok_or("the model's name is not UTF-8")?;
    let found = hub(args).model(name, &args.model_revision, &mut teller(root));
    Ok(found.map_err(|e| format!("there is no folder {name} here; {e}"))?)
}

#[cfg(feature = "hub")]
fn dataset(args: &Args, name: &str, root: bool) -> Result<Vec<(String, PathBuf)>, Failure> {
    let configuration = args.dataset_config_name.as_deref();
    Ok(hub(args).dataset(name, configuration, "main", &mut teller(root))?)
}

#[cfg(feature = "hub")]
fn hub(args: &Args) -> azulejo_bert::hub::Hub {
    let mut hub = azulejo_bert::hub::Hub::new(|name| std::env::var_os(name));
    if let Some(folder) = &args.cache_dir {
        hub = hub.cache_dir(folder);
    }
    match &args.token {
        Some(token) => hub.token(token),
        None => hub,
    }
}

/// Says every few seconds how much of a file has come.
#[cfg(feature = "hub")]
fn teller(root: bool) -> impl FnMut(&str, u64, u64) {
    use std::time::{Duration, Instant};
    const MIB: f64 = 1024.0 * 1024.0;
    let mut said = Instant::now();
    move |name, done, total| {
        let due = said.elapsed() > Duration::from_secs(3) || (done == total && done as f64 > MIB);
        if root && due {
            said = Instant::now();
            complain!(
                "fetching {name}: {:.1} of {:.1} MiB",
                done as f64 / MIB,
                total as f64 / MIB
            );
        }
    }
}
