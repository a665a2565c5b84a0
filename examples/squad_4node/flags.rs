//! The flags of `run_qa.py` that change nothing here, and those that cannot be honoured. What the other flags do, the
//! fields of `Args` say.

/// A flag that is known, but not implemented.
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    /// Values about which nothing is said: those that ask for what happens anyway. `*` stands for every value.
    pub(crate) quiet: &'static [&'static str],
    /// Why it has no effect, or why it is refused.
    pub(crate) reason: &'static str,
}

impl Flag {
    /// Whether this value asks for nothing that does not happen.
    pub(crate) fn is_quiet(&self, value: &str) -> bool {
        let value = match value.to_lowercase().as_str() {
            "yes" | "true" | "t" | "y" => "true".to_owned(),
            "no" | "false" | "f" | "n" => "false".to_owned(),
            other => other.to_owned(),
        };
        // A list or an object without entries, and a number written as a float, come from files of arguments.
        let empty = matches!(value.as_str(), "" | "[]" | "{}" | "none" | "null");
        empty || self.quiet.iter().any(|quiet| *quiet == "*" || *quiet == value)
    }
}

const fn flag(name: &'static str, quiet: &'static [&'static str], reason: &'static str) -> Flag {
    Flag { name, quiet, reason }
}

const OFF: &[&str] = &["false", "0", "0.0"];
const ON: &[&str] = &["true", "1"];
const ANY: &[&str] = &["*"];

/// Flags without effect; a value that is not quiet gives one warning with the reason.
#[rustfmt::skip]
pub(crate) const NO_EFFECT: &[Flag] = &[
    flag("use_cpu", ANY, "this program computes on CPUs only"),
    flag("no_cuda", ANY, "this program computes on CPUs only"),
    flag("use_ipex", ANY, "the kernels are this program's own"),
    flag("full_determinism", ANY, "every run is deterministic, whatever the number of processes"),
    flag("pad_to_max_length", ANY, "nothing is ever padded, and the results are the same"),
    flag("no_pad_to_max_length", ANY, "nothing is ever padded, and the results are the same"),
    flag("save_safetensors", ON, "the weights are always written as safetensors"),
    flag("no_save_safetensors", OFF, "the weights are always written as safetensors"),
    flag("use_fast_tokenizer", ON, "there is one tokenizer, and it is fast"),
    flag("overwrite_cache", OFF, "features are made anew in every run"),
    flag("ignore_data_skip", OFF, "skipping data takes no time"),
    flag("use_auth_token", ANY, "a token of HF_TOKEN, or of the Hub's login, is always used"),
    flag("length_column_name", &["length"], "the lengths are those of the features"),
    flag("jit_mode_eval", OFF, "there is nothing to compile"),
    flag("torch_compile", OFF, "there is nothing to compile"),
    flag("torch_compile_backend", &[], "there is nothing to compile"),
    flag("torch_compile_mode", &[], "there is nothing to compile"),
    flag("torchdynamo", &[], "there is nothing to compile"),
    flag("use_liger_kernel", OFF, "it is a library for GPUs"),
    flag("liger_kernel_config", &[], "it is a library for GPUs"),
    flag("torch_empty_cache_steps", &[], "there is no cache of a device"),
    flag("tf32", OFF, "a CPU has no TF32"),
    flag("half_precision_backend", &["auto", "cpu_amp"], "there is one BF16 path"),
    flag("gradient_checkpointing", OFF, "activations without padding are kept"),
    flag("gradient_checkpointing_kwargs", &[], "activations without padding are kept"),
    flag("auto_find_batch_size", OFF, "a process that runs out of memory is ended by the system and cannot try a smaller batch"),
    flag("accelerator_config", ANY, "it holds settings of a Python library"),
    flag("dispatch_batches", &[], "every process reads the data"),
    flag("split_batches", OFF, "a batch size is that of one process"),
    flag("dataloader_num_workers", OFF, "the features are in memory"),
    flag("dataloader_pin_memory", ANY, "memory is pinned for GPUs"),
    flag("no_dataloader_pin_memory", ANY, "memory is pinned for GPUs"),
    flag("dataloader_prefetch_factor", &[], "the features are in memory"),
    flag("dataloader_persistent_workers", OFF, "the features are in memory"),
    flag("ddp_find_unused_parameters", OFF, "every parameter is used"),
    flag("ddp_broadcast_buffers", OFF, "the model has no buffers"),
    flag("ddp_bucket_cap_mb", &[], "buckets have one size, and the sum is the same for every size"),
    flag("average_tokens_across_devices", OFF, "the loss is a mean over samples"),
    flag("eval_accumulation_steps", &[], "evaluation keeps no logits on a device"),
    flag("eval_do_concat_batches", ON, "the best logits of each window are kept, and nothing else"),
    flag("no_eval_do_concat_batches", OFF, "the best logits of each window are kept, and nothing else"),
    flag("eval_use_gather_object", OFF, "the best logits of each window are gathered, and nothing else"),
    flag("batch_eval_metrics", OFF, "the metric needs all answers of a question"),
    flag("prediction_loss_only", OFF, "evaluation computes no loss"),
    flag("use_legacy_prediction_loop", OFF, "there is one evaluation loop"),
    flag("past_index", &["-1"], "question answering has no past"),
    flag("remove_unused_columns", ON, "unused columns are never read"),
    flag("no_remove_unused_columns", OFF, "unused columns are never read"),
    flag("label_names", &[], "the labels are the start and the end"),
    flag("label_smoothing_factor", OFF, "question answering does not smooth its labels, nor does the original"),
    flag("include_inputs_for_metrics", OFF, "the metric is SQuAD's"),
    flag("include_for_metrics", &[], "the metric is SQuAD's"),
    flag("include_tokens_per_second", ANY, "tokens per second are always shown"),
    flag("include_num_input_tokens_seen", OFF, "tokens per second are always shown"),
    flag("skip_memory_metrics", ANY, "peak memory is always shown"),
    flag("no_skip_memory_metrics", ANY, "peak memory is always shown"),
    flag("logging_nan_inf_filter", ANY, "a loss that is not finite ends the run, with the step and the samples"),
    flag("no_logging_nan_inf_filter", ANY, "a loss that is not finite ends the run, with the step and the samples"),
    flag("log_on_each_node", ANY, "rank 0 writes the log"),
    flag("no_log_on_each_node", ANY, "rank 0 writes the log"),
    flag("log_level_replica", ANY, "ranks other than 0 are silent"),
    flag("save_on_each_node", OFF, "rank 0 saves"),
    flag("restore_callback_states_from_checkpoint", OFF, "there are no callbacks"),
    flag("optim_args", &[], "the optimisers have flags of their own"),
    flag("optim_target_modules", &[], "every parameter is trained"),
    flag("debug", OFF, "it is for other machines"),
    flag("ray_scope", &["last"], "there is no search over hyperparameters"),
    flag("mp_parameters", &[], "it is for another service"),
    flag("_n_gpu", ANY, "this program computes on CPUs only"),
];

const HALF: &str = "a CPU computes in BF16: use --bf16";
const WHOLE: &str = "every process holds the whole model";
const UPLOAD: &str = "nothing is uploaded";

/// Flags that cannot be honoured; a value that is not quiet is an error with the reason.
#[rustfmt::skip]
pub(crate) const REFUSED: &[Flag] = &[
    flag("fp16", OFF, HALF),
    flag("fp16_full_eval", OFF, HALF),
    flag("fp16_opt_level", &["o1"], HALF),
    flag("fp16_backend", &["auto"], HALF),
    flag("deepspeed", OFF, "it is a library for GPUs"),
    flag("fsdp", OFF, WHOLE),
    flag("fsdp_config", &[r#"{"min_num_params":0,"xla":false,"xla_fsdp_grad_ckpt":false,"xla_fsdp_v2":false}"#], WHOLE),
    flag("fsdp_min_num_params", OFF, WHOLE),
    flag("fsdp_transformer_layer_cls_to_wrap", &[], WHOLE),
    flag("sharded_ddp", OFF, WHOLE),
    flag("tpu_num_cores", &[], "this program computes on CPUs"),
    flag("tpu_metrics_debug", OFF, "this program computes on CPUs"),
    flag("use_mps_device", OFF, "this program computes on CPUs"),
    flag("adafactor", OFF, "the optimisers are adamw_torch and adamw_hf"),
    flag("neftune_noise_alpha", OFF, "noise on the embeddings is not implemented"),
    flag("push_to_hub", OFF, UPLOAD),
    flag("push_to_hub_model_id", &[], UPLOAD),
    flag("push_to_hub_organization", &[], UPLOAD),
    flag("push_to_hub_token", &["<push_to_hub_token>"], UPLOAD),
    flag("hub_model_id", &[], UPLOAD),
    flag("hub_strategy", &["every_save"], UPLOAD),
    flag("hub_token", &["<hub_token>"], UPLOAD),
    flag("hub_private_repo", OFF, UPLOAD),
    flag("hub_always_push", OFF, UPLOAD),
    flag("hub_revision", &[], UPLOAD),
    flag("trust_remote_code", OFF, "code from a model's folder is never run"),
];
