//! Text to WordPiece tokens and back to places in the text, as the files of a Hugging Face folder describe it.
//!
//! The work is done by the `tokenizers` crate. This wrapper makes a tokenizer from `tokenizer.json` or `vocab.txt`, applies
//! `tokenizer_config.json`, and switches off truncation and padding that a file has baked in, for windows are cut here.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper};

use crate::error::{Error, Result};
use crate::squad::read::without_place;

/// The tokens of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Ids, without special tokens around them.
    pub ids: Vec<u32>,
    /// The code points `[start, end)` of the text that each token stands for.
    pub offsets: Vec<(u32, u32)>,
}

/// A WordPiece tokenizer with the special tokens of BERT.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    cls: u32,
    sep: u32,
    pad: Option<u32>,
    max_length: Option<usize>,
    path: PathBuf,
    config: Map<String, Value>,
    special_tokens: Map<String, Value>,
    vocab: Option<Vec<u8>>,
}

impl Tokenizer {
    /// Reads a model folder: `tokenizer.json`, else `vocab.txt`; and, where they are there, `tokenizer_config.json` and
    /// `special_tokens_map.json`.
    ///
    /// Case, accents and Chinese characters are treated as `tokenizer_config.json` says, else as `tokenizer.json` says,
    /// else as for an uncased model.
    ///
    /// # Errors
    /// If neither file is there, one cannot be read, or `[CLS]` or `[SEP]` is not in the vocabulary.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let config = read_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let special_tokens = read_object(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        let vocab = read_if_there(&folder.join("vocab.txt"))?;
        let json = folder.join("tokenizer.json");
        if let Some(bytes) = read_if_there(&json)? {
            let inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|e| Error::file(&json, e.to_string()))?;
            return Self::finish(inner, json, config, special_tokens, vocab);
        }
        let Some(vocab) = vocab else {
            return Err(Error::file(folder, "there is neither a tokenizer.json nor a vocab.txt"));
        };
        let path = folder.join("vocab.txt");
        let inner = from_vocabulary(&vocab, &path)?;
        Self::finish(inner, path, config, special_tokens, Some(vocab))
    }

    /// Makes a tokenizer from the contents of a `vocab.txt`.
    ///
    /// # Errors
    /// If `[UNK]`, `[CLS]` or `[SEP]` is not in the vocabulary, or it is not UTF-8.
    pub fn from_vocabulary(vocab: &str, lower_case: bool) -> Result<Self> {
        let path = PathBuf::from("vocab.txt");
        let inner = from_vocabulary(vocab.as_bytes(), &path)?;
        let mut config = Map::new();
        config.insert("do_lower_case".into(), lower_case.into());
        Self::finish(inner, path, config, Map::new(), Some(vocab.into()))
    }

    fn finish(
        mut inner: tokenizers::Tokenizer,
        path: PathBuf,
        config: Map<String, Value>,
        special_tokens: Map<String, Value>,
        vocab: Option<Vec<u8>>,
    ) -> Result<Self> {
        inner
            .with_truncation(None)
            .map_err(|e| Error::file(&path, e.to_string()))?;
        inner.with_padding(None);
        if let Some(NormalizerWrapper::BertNormalizer(normaliser)) = inner.get_normalizer() {
            let flag = |name: &str, default| config.get(name).and_then(Value::as_bool).unwrap_or(default);
            let wanted = BertNormalizer::new(
                normaliser.clean_text,
                flag("tokenize_chinese_chars", normaliser.handle_chinese_chars),
                config
                    .get("strip_accents")
                    .map_or(normaliser.strip_accents, Value::as_bool),
                flag("do_lower_case", normaliser.lowercase),
            );
            inner
                .with_normalizer(Some(wanted))
                .map_err(|e| Error::file(&path, e.to_string()))?;
        }
        let name_of = |role: &str, default: &'static str| {
            [&config, &special_tokens]
                .into_iter()
                .filter_map(|map| map.get(role))
                .find_map(|token| token.as_str().or_else(|| token.get("content")?.as_str()))
                .unwrap_or(default)
                .to_owned()
        };
        let needed = |role: &str, default: &'static str| {
            let name = name_of(role, default);
            inner
                .token_to_id(&name)
                .ok_or_else(|| Error::file(&path, format!("the vocabulary lacks {name:?}")))
        };
        let (cls, sep) = (needed("cls_token", "[CLS]")?, needed("sep_token", "[SEP]")?);
        let pad = inner.token_to_id(&name_of("pad_token", "[PAD]"));
        // "No limit" is written as 1e30.
        let max_length = config
            .get("model_max_length")
            .and_then(Value::as_f64)
            .filter(|length| (1.0..1e9).contains(length))
            .map(|length| length as usize);
        Ok(Self {
            inner,
            cls,
            sep,
            pad,
            max_length,
            path,
            config,
            special_tokens,
            vocab,
        })
    }

    /// The tokens of a text. Special tokens that are written in it are recognised; none are put around it.
    ///
    /// # Errors
    /// If the vocabulary lacks its own unknown token.
    pub fn encode(&self, text: &str) -> Result<Tokens> {
        let encoding = self
            .inner
            .encode_char_offsets(text, false)
            .map_err(|e| Error::file(&self.path, e.to_string()))?;
        Ok(Tokens {
            ids: encoding.get_ids().to_vec(),
            offsets: encoding
                .get_offsets()
                .iter()
                .map(|&(start, end)| (start as u32, end as u32))
                .collect(),
        })
    }

    /// The id of `[CLS]`.
    pub fn cls(&self) -> u32 {
        self.cls
    }

    /// The id of `[SEP]`.
    pub fn sep(&self) -> u32 {
        self.sep
    }

    /// The id of `[PAD]`, if the vocabulary has one.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// The id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token of an id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// One more than the largest id, which is what the model's word embeddings must hold.
    pub fn vocabulary(&self) -> usize {
        let largest = self.inner.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
    }

    /// The longest window that `tokenizer_config.json` allows, if it sets a limit.
    pub fn max_length(&self) -> Option<usize> {
        self.max_length
    }

    /// The tokenizer's files in a model folder, by name. Files that were read are given back as they were, except for a
    /// truncation or padding in `tokenizer.json`; those that were not there are made.
    ///
    /// # Errors
    /// If the tokenizer cannot be written as JSON.
    pub fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let json = self
            .inner
            .to_string(true)
            .map_err(|e| Error::file(&self.path, e.to_string()))?;
        let mut config = self.config.clone();
        if let Some(NormalizerWrapper::BertNormalizer(normaliser)) = self.inner.get_normalizer() {
            config.entry("do_lower_case").or_insert(normaliser.lowercase.into());
        }
        let name = |id: u32| self.token(id).unwrap_or_default();
        let mut special_tokens = self.special_tokens.clone();
        let roles = [
            ("cls_token", Some(name(self.cls))),
            ("mask_token", self.id("[MASK]").map(name)),
            ("pad_token", self.pad.map(name)),
            ("sep_token", Some(name(self.sep))),
            ("unk_token", self.id("[UNK]").map(name)),
        ];
        for (role, name) in roles {
            if let Some(name) = name {
                special_tokens.entry(role).or_insert(json!(name));
            }
        }
        Ok(vec![
            ("special_tokens_map.json", pretty(special_tokens)),
            ("tokenizer.json", json.into_bytes()),
            ("tokenizer_config.json", pretty(config)),
            (
                "vocab.txt",
                self.vocab.clone().unwrap_or_else(|| self.vocabulary_text()),
            ),
        ])
    }

    fn vocabulary_text(&self) -> Vec<u8> {
        let mut tokens: Vec<_> = self.inner.get_vocab(false).into_iter().collect();
        tokens.sort_by_key(|(_, id)| *id);
        tokens
            .into_iter()
            .flat_map(|(token, _)| (token + "\n").into_bytes())
            .collect()
    }
}

fn pretty(map: Map<String, Value>) -> Vec<u8> {
    format!("{:#}\n", Value::Object(map)).into_bytes()
}

/// The tokenizer of an uncased BERT; `tokenizer_config.json` changes what differs from that.
fn from_vocabulary(vocab: &[u8], path: &Path) -> Result<tokenizers::Tokenizer> {
    let refuse = |e: tokenizers::Error| Error::file(path, e.to_string());
    let model = WordPiece::builder()
        .vocab(WordPiece::read_bytes(vocab).map_err(refuse)?)
        .build()
        .map_err(refuse)?;
    let mut tokenizer = tokenizers::Tokenizer::new(ModelWrapper::WordPiece(model));
    let id = |token: &str| {
        tokenizer
            .token_to_id(token)
            .ok_or_else(|| Error::file(path, format!("the vocabulary lacks {token:?}")))
    };
    id("[UNK]")?;
    let processing = BertProcessing::new(("[SEP]".into(), id("[SEP]")?), ("[CLS]".into(), id("[CLS]")?));
    tokenizer
        .with_normalizer(Some(BertNormalizer::default()))
        .map_err(refuse)?;
    tokenizer
        .with_pre_tokenizer(Some(BertPreTokenizer))
        .with_post_processor(Some(processing))
        .with_decoder(Some(tokenizers::decoders::wordpiece::WordPiece::default()));
    let special: Vec<_> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        .into_iter()
        .filter(|token| tokenizer.token_to_id(token).is_some())
        .map(|token| AddedToken::from(token, true))
        .collect();
    tokenizer.add_special_tokens(special).map_err(refuse)?;
    Ok(tokenizer)
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path)(e)),
    }
}

fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(bytes) = read_if_there(path)? else {
        return Ok(None);
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| Error::Json {
        path: path.to_owned(),
        line: e.line(),
        column: e.column(),
        message: without_place(&e),
    })
}
