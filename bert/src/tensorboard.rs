//! Event files for TensorBoard: scalars and texts, as Trainer's callback writes them.
//!
//! A file is a row of records (`length u64, masked CRC-32C of the length, data, masked CRC-32C of the data`, little-endian),
//! whose data are protocol buffers of TensorFlow's `Event`. The few fields that scalars and texts need are encoded here:
//!
//! ```text
//! Event   { 1: wall_time f64, 2: step i64, 3: file_version string, 5: Summary }
//! Summary { 1: Value { 1: tag string, 2: simple_value f32, 8: TensorProto, 9: SummaryMetadata } }
//! ```

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// An event file that is being written. What was written is in the file at once: a dashboard may read along.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    out: File,
}

impl EventFile {
    /// Begins a new file in `folder`, which is created if it is not there.
    ///
    /// # Errors
    /// If the folder or the file cannot be created.
    pub fn create(folder: impl AsRef<Path>) -> Result<EventFile> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let now = since_epoch();
        let name = format!(
            "events.out.tfevents.{}.{}.{}.0",
            now.as_secs(),
            host_name(),
            std::process::id()
        );
        let path = folder.join(name);
        let out = File::create(&path).map_err(Error::io(&path))?;
        let mut file = EventFile { path, out };
        let mut event = Message::default();
        event.double(1, now.as_secs_f64());
        event.bytes(3, b"brain.Event:2");
        file.record(&event.0)?;
        Ok(file)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the numbers among `values` at `step`: `eval_f1` as `eval/f1`, `loss` as `train/loss`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn log(&mut self, step: u64, values: &Map<String, Value>) -> Result<()> {
        let mut summary = Message::default();
        for (name, value) in values {
            let Some(number) = value.as_f64().filter(|_| name != "step") else {
                continue;
            };
            let mut entry = Message::default();
            entry.bytes(1, tag(name).as_bytes());
            entry.float(2, number as f32);
            summary.bytes(1, &entry.0);
        }
        self.event(step, &summary)
    }

    /// Writes a text, which TensorBoard shows as Markdown.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn text(&mut self, tag: &str, text: &str) -> Result<()> {
        const STRING: u64 = 7; // DT_STRING
        let mut plugin = Message::default();
        plugin.bytes(1, b"text");
        let mut metadata = Message::default();
        metadata.bytes(1, &plugin.0);
        let mut size = Message::default();
        size.integer(1, 1);
        let mut shape = Message::default();
        shape.bytes(2, &size.0);
        let mut tensor = Message::default();
        tensor.integer(1, STRING);
        tensor.bytes(2, &shape.0);
        tensor.bytes(8, text.as_bytes());
        let mut entry = Message::default();
        entry.bytes(1, format!("{tag}/text_summary").as_bytes());
        entry.bytes(8, &tensor.0);
        entry.bytes(9, &metadata.0);
        let mut summary = Message::default();
        summary.bytes(1, &entry.0);
        self.event(0, &summary)
    }

    fn event(&mut self, step: u64, summary: &Message) -> Result<()> {
        let mut event = Message::default();
        event.double(1, since_epoch().as_secs_f64());
        event.integer(2, step);
        event.bytes(5, &summary.0);
        self.record(&event.0)
    }

    fn record(&mut self, data: &[u8]) -> Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(data.len() + 16);
        record.extend(length);
        record.extend(masked(crc32c(&length)).to_le_bytes());
        record.extend(data);
        record.extend(masked(crc32c(data)).to_le_bytes());
        self.out.write_all(&record).map_err(Error::io(&self.path))
    }
}

/// The name of a run's folder among others: `Nov30_22-44-28_host`, in UTC.
pub fn run_name() -> String {
    let seconds = since_epoch().as_secs();
    let (month, day) = month_and_day(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{month}{day:02}_{hour:02}-{minute:02}-{second:02}_{}", host_name())
}

/// Where TensorBoard shows a value: what comes from evaluation, from prediction and from training, apart.
fn tag(name: &str) -> String {
    for part in ["eval", "test"] {
        if let Some(rest) = name.strip_prefix(part).and_then(|rest| rest.strip_prefix('_')) {
            return format!("{part}/{rest}");
        }
    }
    format!("train/{name}")
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "localhost".into()
    } else {
        name.into()
    }
}

/// Month and day of a day counted from 1970-01-01.
fn month_and_day(mut day: u64) -> (&'static str, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let names = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    for (name, length) in names.into_iter().zip(lengths) {
        if day < length {
            return (name, day + 1);
        }
        day -= length;
    }
    ("Dec", 31)
}

/// A protocol buffer in the making.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }
}

/// CRC-32C (Castagnoli), bit by bit: logs are short.
fn crc32c(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in data {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ 0x82f6_3b78 & (crc & 1).wrapping_neg();
        }
    }
    !crc
}

/// The form in which record files store a checksum.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of RFC 3720, B.4.
    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn days_have_their_names() {
        for (day, expected) in [
            (0, ("Jan", 1)),
            (58, ("Feb", 28)),
            (59, ("Mar", 1)),
            (789, ("Feb", 29)),    // 1972
            (11_016, ("Feb", 29)), // 2000
            (20_787, ("Nov", 30)), // 2026
        ] {
            assert_eq!(month_and_day(day), expected, "{day}");
        }
    }

    #[test]
    fn names_become_tags() {
        for (name, expected) in [
            ("loss", "train/loss"),
            ("eval_HasAns_f1", "eval/HasAns_f1"),
            ("test_f1", "test/f1"),
            ("evaluation", "train/evaluation"),
        ] {
            assert_eq!(tag(name), expected);
        }
    }

    /// `reference/read_events.py` reads the same with TensorBoard's own reader.
    #[test]
    fn records_are_framed_and_encoded() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path().join("runs/one")).unwrap();
        let values = serde_json::json!({"loss": 0.5, "step": 3, "epoch": 1.25, "name": "left out"});
        file.log(3, values.as_object().unwrap()).unwrap();
        file.text("args", "{}").unwrap();
        let mut bytes = fs::read(file.path()).unwrap();
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let mut record: Vec<_> = bytes.drain(..length + 16).collect();
            assert_eq!(record[8..12], masked(crc32c(&record[..8])).to_le_bytes());
            assert_eq!(
                record[12 + length..],
                masked(crc32c(&record[12..12 + length])).to_le_bytes()
            );
            record.truncate(12 + length);
            assert_eq!(record[12], 9, "field 1, a double");
            records.push(record.split_off(21)); // after the time
        }
        assert_eq!(records[0], b"\x1a\rbrain.Event:2");
        let scalars: &[u8] = b"\x10\x03*'\n\x11\n\ntrain/loss\x15\0\0\0?\n\x12\n\x0btrain/epoch\x15\0\0\xa0?";
        assert_eq!(records[1], scalars);
        assert_eq!(records.len(), 3);
    }
}
