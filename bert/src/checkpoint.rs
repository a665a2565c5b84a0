//! Weights in and out of folders in Hugging Face's layout: `config.json`, `model.safetensors`, the tokenizer's files.
//!
//! Loading reads a tensor at a time, straight into its place in the flat buffer; what a file's header says is held against
//! the file's length and the model's table first. Saving goes through a [`Folder`]: every file is written under a temporary
//! name and synced, and only when all of them are safe do they get their names.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::params::Params;
use crate::squad::read::without_place;
use crate::tokenizer::Tokenizer;
use crate::torch_file;

/// What [`load_weights`] did beside copying.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tensors of the head that the file does not have; their weights are untouched.
    pub new: Vec<String>,
    /// Tensors of the file for which the model has no use.
    pub unused: Vec<String>,
}

/// Reads `config.json` of a model folder, or a file of that kind.
///
/// # Errors
/// If it cannot be read, is not JSON (with line and column), or does not describe a model that this crate knows.
pub fn load_config(path: impl AsRef<Path>) -> Result<Config> {
    let path = path.as_ref();
    let path = if path.is_file() {
        path.to_owned()
    } else {
        path.join("config.json")
    };
    let bytes = fs::read(&path).map_err(Error::io(&path))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| Error::Json {
        path: path.clone(),
        line: e.line(),
        column: e.column(),
        message: without_place(&e),
    })?;
    Config::from_value(value).map_err(|error| match error {
        Error::Config { reason } => Error::File { path, reason },
        other => other,
    })
}

/// Reads `model.safetensors`, or else `pytorch_model.bin`, of a model folder into `weights`, the flat buffer of `params`.
///
/// Names may lack the prefix `bert.` or `distilbert.`, and LayerNorms may have the old names `gamma` and `beta`. Tensors may be
/// `F32`, `F16` or `BF16`. Integer tensors, such as `position_ids`, are passed over. `weights` must be initialised, for
/// a head that the file does not have keeps its values.
///
/// # Errors
/// If the file is absent, cut off or inconsistent, lacks a tensor of the encoder, or has one in another shape. `weights` may
/// then be partly overwritten.
pub fn load_weights(folder: impl AsRef<Path>, params: &Params, weights: &mut [f32]) -> Result<Report> {
    if weights.len() != params.total() {
        return Err(Error::Length {
            what: "weights to load into",
            expected: params.total(),
            got: weights.len(),
        });
    }
    // Everything is checked before anything is copied.
    let mut found = find_weights(folder.as_ref(), params)?;
    let mut buffer = Vec::new();
    for (tensor, param) in &found.plan {
        let range = params.iter().as_slice()[*param].range.clone();
        read_tensor(&mut found.file, tensor, &mut weights[range], &mut buffer).map_err(Error::io(&found.path))?;
    }
    Ok(found.report)
}

/// Finds out whether [`load_weights`] would find everything that it needs, without reading a weight: before memory for
/// a model is asked for, whose size only its `config.json` has stated.
///
/// # Errors
/// As [`load_weights`].
pub fn check_weights(folder: impl AsRef<Path>, params: &Params) -> Result<Report> {
    Ok(find_weights(folder.as_ref(), params)?.report)
}

/// A weight file with a place for each of its tensors.
struct Found {
    file: File,
    path: PathBuf,
    plan: Vec<(Tensor, usize)>, // a tensor, and the index of the parameter that it is
    report: Report,
}

fn find_weights(folder: &Path, params: &Params) -> Result<Found> {
    let mut path = folder.join("model.safetensors");
    let old = folder.join("pytorch_model.bin");
    let is_old = !path.exists() && old.exists();
    if is_old {
        path = old;
    }
    let mut file = File::open(&path).map_err(Error::io(&path))?;
    let tensors = if is_old {
        torch_file::read_header(&mut file, &path)?
    } else {
        read_header(&mut file, &path)?
    };
    let mut report = Report::default();
    let mut found = HashSet::new();
    let mut plan = Vec::new();
    for tensor in tensors {
        let Some(param) = target(&tensor.name, params) else {
            if tensor.kind != Kind::Other {
                report.unused.push(tensor.name);
            }
            continue;
        };
        if tensor.kind == Kind::Other {
            return Err(Error::file(
                &path,
                format!(
                    "tensor {:?} has type {}, expected F32, F16 or BF16",
                    tensor.name, tensor.dtype
                ),
            ));
        }
        if tensor.shape != params_shape(params, param) {
            return Err(Error::TensorShape {
                path,
                name: tensor.name,
                expected: params_shape(params, param).to_vec(),
                got: tensor.shape,
            });
        }
        if !found.insert(param) {
            return Err(Error::file(
                &path,
                format!("tensor {:?} is there twice, under two names", tensor.name),
            ));
        }
        plan.push((tensor, param));
    }
    let (missing, new): (Vec<_>, Vec<_>) = params
        .iter()
        .enumerate()
        .filter(|(index, _)| !found.contains(index))
        .map(|(_, param)| param.name.clone())
        .partition(|name| is_encoder(name));
    if !missing.is_empty() {
        return Err(Error::MissingTensors { path, names: missing });
    }
    report.new = new;
    Ok(Found {
        file,
        path,
        plan,
        report,
    })
}

/// Writes a model folder: `config.json`, `model.safetensors` and, where there is one, the tokenizer's files.
///
/// # Errors
/// If a file cannot be written. Nothing has changed then, unless the fault came while files that are complete got their names.
pub fn save(
    folder: impl AsRef<Path>,
    config: &Config,
    params: &Params,
    weights: &[f32],
    tokenizer: Option<&Tokenizer>,
) -> Result<()> {
    let mut folder = Folder::open(folder)?;
    save_into(&mut folder, config, params, weights, tokenizer)?;
    folder.commit()
}

/// Adds the files of [`save`] to a folder to which the caller adds more.
///
/// # Errors
/// As [`Folder::add`].
pub fn save_into(
    folder: &mut Folder,
    config: &Config,
    params: &Params,
    weights: &[f32],
    tokenizer: Option<&Tokenizer>,
) -> Result<()> {
    let text = format!("{:#}\n", config.to_json());
    folder.add("config.json", |out| out.write_all(text.as_bytes()))?;
    let tensors: Vec<_> = params
        .iter()
        .map(|param| {
            (
                param.name.as_str(),
                param.shape.as_slice(),
                &weights[param.range.clone()],
            )
        })
        .collect();
    folder.add("model.safetensors", |out| write_safetensors(out, &tensors))?;
    if let Some(tokenizer) = tokenizer {
        for (name, bytes) in tokenizer.files()? {
            folder.add(name, |out| out.write_all(&bytes))?;
        }
    }
    Ok(())
}

/// Writes `f32` tensors as safetensors.
///
/// # Errors
/// Those of `out`.
pub fn write_safetensors(out: &mut dyn Write, tensors: &[(&str, &[usize], &[f32])]) -> std::io::Result<()> {
    let mut header = Map::new();
    // transformers refuses files without this entry.
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut begin = 0;
    for (name, shape, values) in tensors {
        let end = begin + 4 * values.len();
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]});
        header.insert((*name).into(), entry);
        begin = end;
    }
    let mut header = Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let mut bytes = Vec::with_capacity(BLOCK);
    for (_, _, values) in tensors {
        for block in values.chunks(BLOCK / 4) {
            bytes.clear();
            bytes.extend(block.iter().flat_map(|value| value.to_le_bytes()));
            out.write_all(&bytes)?;
        }
    }
    Ok(())
}

/// Files that appear in a folder all together, or not at all.
///
/// [`add`](Folder::add) writes and syncs a file under a temporary name; [`commit`](Folder::commit) renames them. Dropped
/// without a commit, it removes what it has written.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    created: Vec<PathBuf>,          // folders that were not there, innermost first
    files: Vec<(PathBuf, PathBuf)>, // temporary name, name
}

impl Folder {
    /// Opens a folder to write into, which is created if it is not there.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let absent = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let created = path.ancestors().take_while(absent).map(Path::to_owned).collect();
        fs::create_dir_all(&path).map_err(Error::io(&path))?;
        Ok(Self {
            path,
            created,
            files: Vec::new(),
        })
    }

    /// Writes a file under a temporary name.
    ///
    /// # Errors
    /// If it cannot be written, because the disk is full for example.
    pub fn add(&mut self, name: &str, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        let path = self.path.join(name);
        let temporary = self.path.join(format!(".{name}.{}.partial", std::process::id()));
        self.files.push((temporary.clone(), path.clone()));
        let written = || {
            let mut out = BufWriter::new(File::create(&temporary)?);
            write(&mut out)?;
            out.into_inner().map_err(|e| e.into_error())?.sync_all()
        };
        written().map_err(Error::io(&path))
    }

    /// Gives all files their names.
    ///
    /// # Errors
    /// If a file cannot be renamed; files renamed before it keep their new contents.
    pub fn commit(mut self) -> Result<()> {
        for (temporary, path) in std::mem::take(&mut self.files) {
            let renamed = fs::rename(&temporary, &path).map_err(Error::io(&path));
            if renamed.is_err() {
                self.files.push((temporary, path));
            }
            renamed?;
        }
        self.created.clear();
        // The names are safe only when the folder itself is. Not every file system can sync a folder.
        if let Ok(folder) = File::open(&self.path) {
            let _unsupported = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for (temporary, _) in &self.files {
            let _absent = fs::remove_file(temporary);
        }
        for folder in &self.created {
            let _not_empty = fs::remove_dir(folder);
        }
    }
}

/// Bytes that are read, decoded or written at a time: fits the second-level cache.
const BLOCK: usize = 1 << 18;

/// No header of a real model comes near this; a damaged length usually exceeds it.
const MAX_HEADER: u64 = 100 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    Other,
}

#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) kind: Kind,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Range<u64>, // in the file
}

/// The tensors of a file in the order of their data, which has been found to fill the file without gaps or overlaps.
fn read_header(file: &mut File, path: &Path) -> Result<Vec<Tensor>> {
    let refuse = |reason: String| Error::file(path, reason);
    let length = file.metadata().map_err(Error::io(path))?.len();
    let mut prefix = [0; 8];
    if length < 8 {
        return Err(refuse(format!(
            "a safetensors file begins with 8 bytes of header length, this one has {length} bytes"
        )));
    }
    file.read_exact(&mut prefix).map_err(Error::io(path))?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER || header > length - 8 {
        return Err(refuse(format!(
            "its header says to be {header} bytes long, but the file has {length} bytes in all"
        )));
    }
    let mut text = vec![0; header as usize];
    file.read_exact(&mut text).map_err(Error::io(path))?;
    let header_map: Map<String, Value> = serde_json::from_slice(&text)
        .map_err(|e| refuse(format!("its header is not a JSON object: {}", without_place(&e))))?;
    let mut tensors = Vec::with_capacity(header_map.len());
    for (name, entry) in header_map {
        if name != "__metadata__" {
            let tensor = read_entry(&name, &entry, 8 + header);
            tensors.push(tensor.ok_or_else(|| refuse(format!("its header describes tensor {name:?} as {entry}")))?);
        }
    }
    tensors.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    let mut at = 8 + header;
    for tensor in &tensors {
        if tensor.bytes.start != at || tensor.bytes.end > length {
            return Err(refuse(format!(
                "tensor {:?} is said to fill bytes {} to {}, but the one before it ends at {at} and the file has {length} bytes",
                tensor.name, tensor.bytes.start, tensor.bytes.end
            )));
        }
        at = tensor.bytes.end;
    }
    if at != length {
        return Err(refuse(format!(
            "its tensors end at byte {at}, but the file has {length} bytes"
        )));
    }
    Ok(tensors)
}

/// One entry of the header; `None` if it is malformed, or if its numbers contradict each other.
fn read_entry(name: &str, entry: &Value, data: u64) -> Option<Tensor> {
    let dtype = entry.get("dtype")?.as_str()?;
    let kind = match dtype {
        "F32" => Kind::F32,
        "F16" => Kind::F16,
        "BF16" => Kind::Bf16,
        _ => Kind::Other,
    };
    let shape = entry.get("shape")?.as_array()?;
    let shape: Vec<_> = shape
        .iter()
        .map(|n| usize::try_from(n.as_u64()?).ok())
        .collect::<Option<_>>()?;
    let [begin, end] = entry.get("data_offsets")?.as_array()?.as_slice() else {
        return None;
    };
    let (begin, end) = (begin.as_u64()?, end.as_u64()?);
    let size = end.checked_sub(begin)?;
    let elements = shape.iter().try_fold(1usize, |product, n| product.checked_mul(*n))? as u64;
    let consistent = match kind {
        Kind::F32 => elements.checked_mul(4)? == size,
        Kind::F16 | Kind::Bf16 => elements.checked_mul(2)? == size,
        Kind::Other => true,
    };
    consistent.then_some(Tensor {
        name: name.into(),
        dtype: dtype.into(),
        kind,
        shape,
        bytes: data.checked_add(begin)?..data.checked_add(end)?,
    })
}

/// The parameter that a tensor of a file is, as its index in the table.
fn target(name: &str, params: &Params) -> Option<usize> {
    let name = match name.rsplit_once('.') {
        Some((stem, "gamma")) => format!("{stem}.weight"),
        Some((stem, "beta")) => format!("{stem}.bias"),
        _ => name.to_owned(),
    };
    ["", "bert.", "distilbert."]
        .into_iter()
        .find_map(|prefix| params.find(&format!("{prefix}{name}")))
        .map(|param| {
            params
                .iter()
                .as_slice()
                .partition_point(|p| p.range.start < param.range.start)
        })
}

fn params_shape(params: &Params, index: usize) -> &[usize] {
    &params.iter().as_slice()[index].shape
}

fn is_encoder(name: &str) -> bool {
    name.starts_with("bert.") || name.starts_with("distilbert.")
}

fn read_tensor(file: &mut File, tensor: &Tensor, out: &mut [f32], buffer: &mut Vec<u8>) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(tensor.bytes.start))?;
    let width = if tensor.kind == Kind::F32 { 4 } else { 2 };
    for block in out.chunks_mut(BLOCK / width) {
        buffer.resize(block.len() * width, 0);
        file.read_exact(buffer)?;
        let (fours, _) = buffer.as_chunks::<4>();
        let (twos, _) = buffer.as_chunks::<2>();
        match tensor.kind {
            Kind::F32 => fill(block, fours.iter().map(|&bytes| f32::from_le_bytes(bytes))),
            Kind::F16 => fill(block, twos.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32())),
            Kind::Bf16 | Kind::Other => fill(block, twos.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32())),
        }
    }
    Ok(())
}

fn fill(out: &mut [f32], values: impl Iterator<Item = f32>) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = value;
    }
}
