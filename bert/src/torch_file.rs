//! Reads what PyTorch's `torch.save` has written: `pytorch_model.bin`, the form of weights before safetensors.
//!
//! The file is a zip archive without compression. Its entry `data.pkl` is a program for Python's pickle machine that
//! builds a dictionary of tensors; each tensor names the entry `data/KEY` with its values. Programs can do anything in
//! Python, and files from strangers have. Here a machine of 34 instructions runs that knows dictionaries, tuples, numbers,
//! texts and tensors, and the names of PyTorch's types; whatever else a file asks for is refused, by name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use crate::checkpoint::{Kind, Tensor};
use crate::error::{Error, Result};

/// The tensors of a file, with their places in it.
pub(crate) fn read_header(file: &mut File, path: &Path) -> Result<Vec<Tensor>> {
    let refuse = |reason: String| Error::file(path, reason);
    let entries = entries(file).map_err(refuse)?;
    let program = entries
        .iter()
        .filter(|(name, _)| name.ends_with("/data.pkl"))
        .collect::<Vec<_>>();
    let [(name, range)] = program[..] else {
        return Err(refuse(format!(
            "a file of torch.save has one entry data.pkl, this archive has {}",
            program.len()
        )));
    };
    let archive = name.trim_end_matches("data.pkl");
    if let Some(order) = entries.get(&format!("{archive}byteorder")) {
        let order = read(file, order, 64).map_err(refuse)?;
        if order != b"little" {
            return Err(refuse("its numbers have the high byte first".into()));
        }
    }
    let program = read(file, range, PROGRAM_LIMIT).map_err(refuse)?;
    let tensors = Machine::default()
        .run(&program)
        .map_err(|reason| refuse(format!("{name}: {reason}")))?;
    let place = |(name, tensor): Named| {
        let key = format!("{archive}data/{}", tensor.storage.key);
        let data = entries.get(&key).ok_or_else(|| format!("it has no entry {key}"))?;
        tensor.place(&name, data)
    };
    tensors.into_iter().map(|pair| place(pair).map_err(refuse)).collect()
}

// ---- the archive ----

/// What an archive ends with, without its comment.
const END: usize = 22;
/// The end of an archive is looked for in so many bytes.
const TAIL: u64 = (END + 65_535) as u64;

/// Longest table of entries, and longest program, that is read: a thousand times what a real model has.
const TABLE_LIMIT: u64 = 64 << 20;
const PROGRAM_LIMIT: u64 = 16 << 20;

type Entries = HashMap<String, Range<u64>>;

fn read(file: &mut File, range: &Range<u64>, limit: u64) -> Result<Vec<u8>, String> {
    let length = range.end - range.start;
    if length > limit {
        return Err(format!(
            "a part that is read as a whole has {length} bytes, limit {limit}"
        ));
    }
    let mut bytes = vec![0; length as usize];
    let outcome = file
        .seek(SeekFrom::Start(range.start))
        .and_then(|_| file.read_exact(&mut bytes));
    outcome.map_err(|e| e.to_string())?;
    Ok(bytes)
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

/// The entries of a zip archive and where the bytes of each are.
fn entries(file: &mut File) -> Result<Entries, String> {
    let length = file.metadata().map_err(|e| e.to_string())?.len();
    let tail_at = length.saturating_sub(TAIL);
    let tail = read(file, &(tail_at..length), TAIL)?;
    if number(&read(file, &(0..length.min(4)), 4)?, 0, 4) == Some(0x0a8a_0280) {
        return Err("it has the form of PyTorch before 1.6: load it with torch.load and save it again".into());
    }
    let end = (0..tail.len().saturating_sub(END - 1))
        .rev()
        .find(|&at| tail[at..].starts_with(b"PK\x05\x06"))
        .ok_or("it is no file of torch.save, or is cut off: it has no table of entries at its end")?;
    let damaged = || "its table of entries is damaged".to_string();
    let mut count = number(&tail, end + 10, 2).ok_or_else(damaged)?;
    let mut size = number(&tail, end + 12, 4).ok_or_else(damaged)?;
    let mut start = number(&tail, end + 16, 4).ok_or_else(damaged)?;
    // Large archives have a larger end before this one.
    if let Some(locator) = end.checked_sub(20)
        && tail[locator..].starts_with(b"PK\x06\x07")
    {
        let at = number(&tail, locator + 8, 8).ok_or_else(damaged)?;
        let until = at
            .checked_add(56)
            .filter(|&until| until <= length)
            .ok_or_else(damaged)?;
        let large = read(file, &(at..until), 56)?;
        if !large.starts_with(b"PK\x06\x06") {
            return Err(damaged());
        }
        let field = |at| number(&large, at, 8).ok_or_else(damaged);
        (count, size, start) = (field(32)?, field(40)?, field(48)?);
    }
    let until = start
        .checked_add(size)
        .filter(|&until| until <= length)
        .ok_or_else(damaged)?;
    let table = read(file, &(start..until), TABLE_LIMIT)?;
    let mut entries = Entries::new();
    let mut at = 0;
    for _ in 0..count {
        let (name, data, next) = entry(file, length, &table, at)?;
        if entries.insert(name.clone(), data).is_some() {
            return Err(format!("entry {name} is there twice"));
        }
        at = next;
    }
    Ok(entries)
}

/// The entry at `at` of the table: its name, its bytes, and where the next one begins.
fn entry(file: &mut File, length: u64, table: &[u8], at: usize) -> Result<(String, Range<u64>, usize), String> {
    let damaged = || "its table of entries is damaged".to_string();
    let field = |offset: usize, width: usize| number(table, at + offset, width).ok_or_else(damaged);
    if field(0, 4)? != 0x0201_4b50 {
        return Err(damaged());
    }
    let (method, packed, size, header) = (field(10, 2)?, field(20, 4)?, field(24, 4)?, field(42, 4)?);
    let [name_length, extra_length, comment] = [field(28, 2)?, field(30, 2)?, field(32, 2)?].map(|n| n as usize);
    let extra_at = at + 46 + name_length;
    let name = table.get(at + 46..extra_at).ok_or_else(damaged)?;
    let name = String::from_utf8_lossy(name).into_owned();
    let extra = table.get(extra_at..extra_at + extra_length).ok_or_else(damaged)?;
    let (size, packed, header) = large(extra, size, packed, header).ok_or_else(damaged)?;
    if method != 0 || packed != size {
        return Err(format!("entry {name} is compressed, which torch.save does not do"));
    }
    // The bytes follow the entry's own header, whose lengths may differ from the table's.
    let until = header
        .checked_add(30)
        .filter(|&until| until <= length)
        .ok_or_else(damaged)?;
    let own = read(file, &(header..until), 30)?;
    if !own.starts_with(b"PK\x03\x04") {
        return Err(damaged());
    }
    let lengths = number(&own, 26, 2).zip(number(&own, 28, 2)).ok_or_else(damaged)?;
    let begin = until + lengths.0 + lengths.1;
    let end = begin.checked_add(size).filter(|&end| end <= length);
    let end =
        end.ok_or_else(|| format!("entry {name} has {size} bytes from byte {begin} on, the file has {length}"))?;
    Ok((name, begin..end, extra_at + extra_length + comment))
}

/// Numbers of an entry that do not fit in 32 bits are in the field with number 1 beside it, in this order.
fn large(mut extra: &[u8], size: u64, packed: u64, header: u64) -> Option<(u64, u64, u64)> {
    const ELSEWHERE: u64 = 0xffff_ffff;
    let mut fields = [size, packed, header];
    if !fields.contains(&ELSEWHERE) {
        return Some((size, packed, header));
    }
    loop {
        let (id, length) = (number(extra, 0, 2)?, number(extra, 2, 2)? as usize);
        let body = extra.get(4..4 + length)?;
        if id == 1 {
            let mut at = 0;
            for field in fields.iter_mut().filter(|field| **field == ELSEWHERE) {
                *field = number(body, at, 8)?;
                at += 8;
            }
            let [size, packed, header] = fields;
            return Some((size, packed, header));
        }
        extra = &extra[4 + length..];
    }
}

// ---- the program ----

/// Values of one type in an entry of the archive.
#[derive(Debug)]
struct Storage {
    dtype: &'static str,
    kind: Kind,
    width: u64,
    key: Rc<str>,
    elements: u64,
}

/// A tensor: a part of a storage.
#[derive(Debug)]
struct View {
    storage: Rc<Storage>,
    offset: u64,
    shape: Vec<usize>,
    stride: Vec<u64>,
}

impl View {
    /// The tensor's bytes in the file, where its storage is in `data`.
    fn place(&self, name: &str, data: &Range<u64>) -> Result<Tensor, String> {
        let Storage {
            dtype,
            kind,
            width,
            elements,
            ..
        } = *self.storage;
        let has = data.end - data.start;
        if elements.checked_mul(width) != Some(has) {
            return Err(format!(
                "tensor {name:?} is in a storage of {elements} x {dtype}, but its entry has {has} bytes"
            ));
        }
        let mut step = 1_u64;
        for (&size, &stride) in self.shape.iter().zip(&self.stride).rev() {
            if size > 1 && stride != step {
                return Err(format!(
                    "tensor {name:?} of shape {:?} has the strides {:?}: save it contiguous",
                    self.shape, self.stride
                ));
            }
            step = step.checked_mul(size as u64).ok_or("a tensor has no end")?;
        }
        let end = self.offset.checked_add(step).filter(|&end| end <= elements);
        let end = end.ok_or_else(|| {
            format!(
                "tensor {name:?} has {step} values from {} on, its storage {elements}",
                self.offset
            )
        })?;
        Ok(Tensor {
            name: name.to_owned(),
            dtype: dtype.into(),
            kind,
            shape: self.shape.clone(),
            bytes: data.start + self.offset * width..data.start + end * width,
        })
    }
}

/// What a program may call or name.
#[derive(Debug, Clone, Copy)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(&'static str, Kind, u64),
}

/// A tensor's name and the tensor.
type Named = (Rc<str>, Rc<View>);
/// An entry of a dictionary.
type Item = (Rc<str>, Option<Rc<View>>);

#[derive(Debug, Clone)]
enum Value {
    Mark,
    None,
    Bool,
    Int(i64),
    Text(Rc<str>),
    /// With how deep it goes: values go away recursively, so that this has a limit.
    Tuple(Rc<(u8, Vec<Value>)>),
    /// Names and tensors of a dictionary; filled after others hold it. What is no tensor is not kept.
    Dict(Rc<RefCell<Vec<Item>>>),
    /// A list, of which nothing is needed.
    List,
    Global(Global),
    Storage(Rc<Storage>),
    Tensor(Rc<View>),
}

fn global(module: &str, name: &str) -> Result<Global, String> {
    Ok(match (module, name) {
        ("collections", "OrderedDict") => Global::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
        ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
        ("torch", "FloatStorage") => Global::Storage("F32", Kind::F32, 4),
        ("torch", "HalfStorage") => Global::Storage("F16", Kind::F16, 2),
        ("torch", "BFloat16Storage") => Global::Storage("BF16", Kind::Bf16, 2),
        ("torch", "DoubleStorage") => Global::Storage("F64", Kind::Other, 8),
        ("torch", "LongStorage") => Global::Storage("I64", Kind::Other, 8),
        ("torch", "IntStorage") => Global::Storage("I32", Kind::Other, 4),
        ("torch", "ShortStorage") => Global::Storage("I16", Kind::Other, 2),
        ("torch", "CharStorage") => Global::Storage("I8", Kind::Other, 1),
        ("torch", "ByteStorage") => Global::Storage("U8", Kind::Other, 1),
        ("torch", "BoolStorage") => Global::Storage("BOOL", Kind::Other, 1),
        _ => {
            return Err(format!(
                "it asks for {module}.{name}, which weights do not need: refused"
            ));
        }
    })
}

/// Python's pickle machine, as far as weights need it.
#[derive(Debug, Default)]
struct Machine {
    stack: Vec<Value>,
    memo: HashMap<u64, Value>,
}

impl Machine {
    /// The tensors of the dictionary that the program builds, by name.
    fn run(mut self, mut program: &[u8]) -> Result<Vec<Named>, String> {
        let all = program.len();
        loop {
            let at = all - program.len();
            let opcode = *take(&mut program, 1)?.first().ok_or("it is cut off")?;
            if opcode == b'.' {
                break;
            }
            self.step(opcode, &mut program)
                .map_err(|reason| format!("instruction {opcode:#04x} at byte {at}: {reason}"))?;
        }
        let Some(Value::Dict(pairs)) = self.stack.pop() else {
            return Err("it holds something other than a dictionary of tensors".into());
        };
        let pairs = pairs.take().into_iter();
        pairs
            .map(|(name, tensor)| match tensor {
                Some(tensor) => Ok((name, tensor)),
                None => Err(format!("its entry {name:?} is no tensor")),
            })
            .collect()
    }

    fn step(&mut self, opcode: u8, program: &mut &[u8]) -> Result<(), String> {
        let value = match opcode {
            // Which version it is, how long a part of it is.
            0x80 => return take(program, 1).map(drop),
            0x95 => return take(program, 8).map(drop),
            b'(' => Value::Mark,
            b'N' => Value::None,
            0x88 | 0x89 => Value::Bool,
            b'K' => Value::Int(unsigned(program, 1)? as i64),
            b'M' => Value::Int(unsigned(program, 2)? as i64),
            b'J' => Value::Int(i64::from(unsigned(program, 4)? as u32 as i32)),
            0x8a => {
                let width = unsigned(program, 1)? as usize;
                let bytes = take(program, width)?;
                if width > 8 {
                    return Err("a number of more than 64 bits".into());
                }
                let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
                let mut all = [if negative { 0xff } else { 0 }; 8];
                all[..width].copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(all))
            }
            b'X' => text(program, 4)?,
            0x8c => text(program, 1)?,
            b'}' => Value::Dict(Rc::default()),
            b']' => Value::List,
            b')' => tuple(Vec::new())?,
            0x85..=0x87 => {
                let first = self
                    .stack
                    .len()
                    .checked_sub(usize::from(opcode - 0x84))
                    .ok_or("an empty stack")?;
                tuple(self.stack.split_off(first))?
            }
            b't' => tuple(self.since_mark()?)?,
            b'c' => {
                let (module, name) = (line(program)?, line(program)?);
                Value::Global(global(&module, &name)?)
            }
            0x93 => {
                let (name, module) = (self.text()?, self.text()?);
                Value::Global(global(&module, &name)?)
            }
            b'q' => return self.remember(unsigned(program, 1)?),
            b'r' => return self.remember(unsigned(program, 4)?),
            0x94 => return self.remember(self.memo.len() as u64),
            b'h' => self.recall(unsigned(program, 1)?)?,
            b'j' => self.recall(unsigned(program, 4)?)?,
            b'Q' => {
                let id = self.pop()?;
                Value::Storage(Rc::new(
                    storage(&id).ok_or("a reference to something other than a storage")?,
                ))
            }
            b'R' => {
                let (arguments, callee) = (self.pop()?, self.pop()?);
                call(&callee, &arguments).ok_or("a call that makes no sense")?
            }
            b's' => {
                let (item, key) = (self.pop()?, self.pop()?);
                return self.set(vec![key, item]);
            }
            b'u' => {
                let items = self.since_mark()?;
                return self.set(items);
            }
            // Attributes of a dictionary: the versions of the modules.
            b'b' => {
                self.pop()?;
                return match self.stack.last() {
                    Some(Value::Dict(_)) => Ok(()),
                    _ => Err("attributes of something other than a dictionary".into()),
                };
            }
            b'a' => return self.pop().map(drop),
            b'e' => return self.since_mark().map(drop),
            _ => return Err("weights do not need it: refused".into()),
        };
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.stack.pop().ok_or_else(|| "an empty stack".into())
    }

    fn text(&mut self) -> Result<Rc<str>, String> {
        match self.pop()? {
            Value::Text(text) => Ok(text),
            _ => Err("a name that is no text".into()),
        }
    }

    /// What lies above the last mark, which goes too.
    fn since_mark(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.stack.iter().rposition(|value| matches!(value, Value::Mark));
        let above = self.stack.split_off(mark.ok_or("no mark")? + 1);
        self.stack.pop();
        Ok(above)
    }

    fn remember(&mut self, number: u64) -> Result<(), String> {
        let value = self.stack.last().ok_or("an empty stack")?;
        self.memo.insert(number, value.clone());
        Ok(())
    }

    fn recall(&self, number: u64) -> Result<Value, String> {
        self.memo
            .get(&number)
            .cloned()
            .ok_or_else(|| format!("nothing was remembered as {number}"))
    }

    /// Puts keys and values, in turn, into the dictionary on the stack.
    fn set(&mut self, items: Vec<Value>) -> Result<(), String> {
        let Some(Value::Dict(pairs)) = self.stack.last() else {
            return Err("an entry of something other than a dictionary".into());
        };
        let mut items = items.into_iter();
        while let (Some(key), item) = (items.next(), items.next()) {
            let item = item.ok_or("a key without a value")?;
            let Value::Text(name) = key else {
                return Err("a name that is no text".into());
            };
            let tensor = match item {
                Value::Tensor(tensor) => Some(tensor),
                _ => None,
            };
            pairs.borrow_mut().push((name, tensor));
        }
        Ok(())
    }
}

fn tuple(items: Vec<Value>) -> Result<Value, String> {
    let depth = |item: &Value| match item {
        Value::Tuple(inner) => inner.0 + 1,
        _ => 0,
    };
    let depth = items.iter().map(depth).max().unwrap_or(0);
    if depth > 8 {
        return Err("tuples in tuples in tuples".into());
    }
    Ok(Value::Tuple(Rc::new((depth, items))))
}

fn take<'a>(program: &mut &'a [u8], count: usize) -> Result<&'a [u8], String> {
    let (taken, rest) = program.split_at_checked(count).ok_or("it is cut off")?;
    *program = rest;
    Ok(taken)
}

fn unsigned(program: &mut &[u8], width: usize) -> Result<u64, String> {
    let bytes = take(program, width)?;
    number(bytes, 0, width).ok_or_else(|| "it is cut off".into())
}

fn text(program: &mut &[u8], width: usize) -> Result<Value, String> {
    let length = unsigned(program, width)? as usize;
    let text = std::str::from_utf8(take(program, length)?).map_err(|_| "a text that is not UTF-8")?;
    Ok(Value::Text(text.into()))
}

fn line(program: &mut &[u8]) -> Result<String, String> {
    let end = program.iter().position(|&byte| byte == b'\n').ok_or("it is cut off")?;
    let line = String::from_utf8_lossy(take(program, end)?).into_owned();
    take(program, 1)?;
    Ok(line)
}

/// The storage that a reference `("storage", type, key, device, number of values)` means.
fn storage(id: &Value) -> Option<Storage> {
    let Value::Tuple(id) = id else { return None };
    match id.1.as_slice() {
        [
            Value::Text(what),
            Value::Global(Global::Storage(dtype, kind, width)),
            Value::Text(key),
            Value::Text(_),
            Value::Int(elements),
        ] if **what == *"storage" => Some(Storage {
            dtype,
            kind: *kind,
            width: *width,
            key: key.clone(),
            elements: u64::try_from(*elements).ok()?,
        }),
        _ => None,
    }
}

fn call(callee: &Value, arguments: &Value) -> Option<Value> {
    let (Value::Global(callee), Value::Tuple(arguments)) = (callee, arguments) else {
        return None;
    };
    match (callee, arguments.1.as_slice()) {
        (Global::OrderedDict, []) => Some(Value::Dict(Rc::default())),
        (
            Global::RebuildTensor,
            [
                Value::Storage(storage),
                Value::Int(offset),
                Value::Tuple(shape),
                Value::Tuple(stride),
                ..,
            ],
        ) if shape.1.len() == stride.1.len() => {
            let numbers = |values: &[Value]| -> Option<Vec<u64>> {
                let number = |value: &Value| match value {
                    Value::Int(n) => u64::try_from(*n).ok(),
                    _ => None,
                };
                values.iter().map(number).collect()
            };
            Some(Value::Tensor(Rc::new(View {
                storage: storage.clone(),
                offset: u64::try_from(*offset).ok()?,
                shape: numbers(&shape.1)?
                    .into_iter()
                    .map(|n| usize::try_from(n).ok())
                    .collect::<Option<_>>()?,
                stride: numbers(&stride.1)?,
            })))
        }
        (Global::RebuildParameter, [Value::Tensor(tensor), ..]) => Some(Value::Tensor(tensor.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(program: &[u8], why: &str) {
        let error = Machine::default().run(program).map(|_| ()).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn programs_that_build_towers_or_loops_end_with_an_error() {
        let tower = [&b")"[..], &vec![0x85; 1 << 20], b"."].concat();
        fails(&tower, "tuples in tuples");
        let marks = [&vec![b'('; 1 << 20][..], b"t."].concat();
        fails(&marks, "something other than a dictionary");
        // A dictionary in itself.
        fails(b"}q\0X\x01\0\0\0ah\0s.", "its entry \"a\" is no tensor");
        fails(b"}q\0K\x01h\0s.", "a name that is no text");
    }

    #[test]
    fn programs_that_make_no_sense_end_with_an_error() {
        fails(b"", "cut off");
        fails(b"\x80", "cut off");
        fails(b"X\xff\xff\xff\xffabc.", "cut off");
        fails(b"t.", "no mark");
        fails(b"\x87.", "an empty stack");
        fails(b"h\x07.", "nothing was remembered as 7");
        fails(b"K\x01Q.", "a reference to something other than a storage");
        fails(b"K\x01)R.", "a call that makes no sense");
        fails(b"\x8a\x09123456789.", "more than 64 bits");
        fails(b"cos\nsystem\nX\x02\0\0\0ls\x85R.", "os.system");
        fails(b"i", "refused");
    }
}
