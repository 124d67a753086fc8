#!/usr/bin/env bash
# Measures this project on the GPU of this machine, trains the paper's main experiment there, and leaves all in a folder.
#
#   bash benchmarks/gpu.sh [OUT] [--quick] [--list]
#
#   OUT       folder of results; benchmark_results/gpu without it (gpu-quick with --quick). Stages whose NN-NAME.done
#             is there are not run again, and training goes on from its last checkpoint: start the same command again
#             after an interruption.
#             A folder has the results of --quick, or those that count, never both.
#   --quick   small sizes, to see that every stage runs; a few minutes on a CPU, and its numbers mean nothing
#   --list    prints the commands instead of running them
#
# Needs JAX for the GPU, no network. With PyTorch for the GPU (pip install -e '.[benchmark]') it is measured too.
# CIFAR-10 is read from $TFDS_DATA_DIR, prepared for tensorflow-datasets. $TRAIN_SECONDS bounds training (7200); $PYTHON
# is the interpreter (python).
# The output of a stage is in OUT/NN-NAME.log; one that fails does not end the others. OUT/summary.md has it all.
set -euo pipefail

OUT='' QUICK='' LIST=''
for word in "$@"; do
  case $word in
    --quick) QUICK=yes ;;
    --list) LIST=yes ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    -*) echo "error: '$word' is not an option; use --quick or --list" >&2; exit 2 ;;
    *)
      [ -z "$OUT" ] || { echo "error: '$word' is a second folder after '$OUT'; give one" >&2; exit 2; }
      OUT=$word
      ;;
  esac
done
OUT=${OUT:-benchmark_results/gpu${QUICK:+-quick}}
case $OUT in /*) ;; *) OUT=$PWD/$OUT ;; esac
TRAIN_SECONDS=${TRAIN_SECONDS:-7200}
case $TRAIN_SECONDS in '' | *[!0-9]*) echo "error: TRAIN_SECONDS='$TRAIN_SECONDS' is not a number of seconds" >&2; exit 2 ;; esac
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
GPU=$(command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -n 1 || true)
if [ -z "$LIST$QUICK" ] && ! "$PYTHON" -c 'import sys, jax; sys.exit(jax.default_backend() == "cpu")'; then
  echo "error: JAX sees no GPU here (nvidia-smi: ${GPU:-none}); install jax[cuda13], or add --quick" >&2
  exit 2
fi
[ -n "$LIST" ] || mkdir -p "$OUT" || { echo "error: cannot make the folder $OUT; choose another" >&2; exit 2; }
sizes=${QUICK:+quick} sizes=${sizes:-full}
if [ -z "$LIST" ]; then
  of_folder=$(cat "$OUT/sizes" 2> /dev/null || echo "$sizes")
  if [ "$of_folder" != "$sizes" ]; then
    echo "error: $OUT has results of the $of_folder sizes, this would add the $sizes ones; choose another folder" >&2
    exit 2
  fi
  echo "$sizes" > "$OUT/sizes"
fi

# --- stages

number=0 failed='' unfinished='' deadline=0 child=''

# stage NAME SECONDS COMMAND...: runs a command, a function of `within`, unless it was done before.
stage() {
  local name=$1 limit=$2 tag started status=0
  shift 2
  number=$((number + 1))
  tag=$(printf '%02d-%s' "$number" "$name")
  if [ -n "$LIST" ]; then
    "$@"
    return
  fi
  if [ -e "$OUT/$tag.done" ]; then
    echo "$tag: done before"
    return
  fi
  printf '%s (at most %d min) … ' "$tag" $(((limit + 59) / 60))
  started=$SECONDS deadline=$((SECONDS + limit))
  "$@" > "$OUT/$tag.log" 2>&1 || status=$?
  if [ "$status" = 0 ]; then
    echo "$((SECONDS - started)) s" | tee "$OUT/$tag.done"
  else
    local last
    last=$(grep -v '^ *$' "$OUT/$tag.log" | tail -n 1 | cut -c 1-200)
    if [ "$status" = 124 ]; then
      unfinished="$unfinished $tag"
      echo "stopped after $((SECONDS - started)) s: $last"
    else
      failed="$failed $tag"
      echo "FAILED with exit status $status: $last"
    fi
  fi
}

# within COMMAND...: runs it until the deadline of its stage, then asks it to stop.
within() {
  if [ -n "$LIST" ]; then
    printf '%q ' "$@"
    echo
    return
  fi
  local left=$((deadline - SECONDS))
  [ "$left" -gt 0 ] || return 124
  timeout --signal=TERM --kill-after=120 "$left" "$@" &
  child=$!
  wait "$child" # unlike a command in the foreground, this is interrupted by a signal
}

interrupted() {
  if [ -n "$child" ] && kill "$child" 2> /dev/null; then
    echo 'interrupted: waiting for the command of this stage to stop …' >&3
    wait "$child" || true
  fi
  echo 'interrupted; the same command goes on' >&3
  exit 130
}
exec 3>&1 # where a stage prints is its log
trap interrupted INT TERM

machine() {
  [ -z "$GPU" ] || within nvidia-smi || return
  within git log -1 --format='commit %H' || true
  within "$PYTHON" -c 'import importlib.metadata as m, platform, jax
print("python", platform.python_version())
for name in ("jax", "jaxlib", "flax", "optax", "numpy", "torch"):
    try: print(name, m.version(name))
    except m.PackageNotFoundError: print(name, "is not installed")
print("devices:", *jax.devices())'
}

preview() {
  local target
  case $GPU in
    *H200*) target=h200 ;;
    *H100*) target=h100 ;;
    *A100*) target=a100 ;;
    *T4*) target=t4 ;;
    '') target=cpu ;;
    *) echo "nothing to preview: $GPU is not a target"; return ;;
  esac
  within "$PYTHON" -m semisfl_jax.preview --target="$target" "${preview_sizes[@]}"
}

# Training in legs, each of which ends with a summary that figures can be drawn from; more rounds resume the run, fewer
# than it has are an error.
train() {
  local rounds last
  last=$(find "$OUT/cifar10/checkpoints" -maxdepth 1 -name '[0-9]*' -printf '%f\n' 2> /dev/null | sort -n | tail -n 1 || true)
  for rounds in "${legs[@]}"; do
    [ "$rounds" -ge "${last:-0}" ] || continue
    within "$PYTHON" launch.py --config=configs/cifar10.py --workdir="$OUT/cifar10" --config.rounds="$rounds" \
      "${train_sizes[@]}" || return
  done
}

table2() {
  within "$PYTHON" -c 'import json, sys
records = [json.loads(line) for line in open(sys.argv[1])]
judged = [record for record in records if record.get("teacher_accuracy") is not None]
said = "; after round {round} the teacher has {teacher_accuracy:.1%}"
print(len(records), "rounds done", *(said.format(**record) for record in judged[-1:]))' "$OUT/cifar10/metrics.jsonl" || return
  within "$PYTHON" -m semisfl_jax.compare --last=10 "$OUT/cifar10" || return # of the last leg that was completed
  within "$PYTHON" -c 'from configs.studies import paper
print("the paper, after 1,000 rounds: %.1f ± %.1f (Table II, SemiSFL)" % paper.TABLE_2["SemiSFL"]["CIFAR-10"])'
}

# --- sizes

if [ -n "$QUICK" ]; then
  preview_sizes=(--config=configs/digits.py --config.k_s=1 --config.k_u=1)
  lowerings_sizes=(--clients=2 --batch_size=2 --steps=1 --repeats=1)
  run_sizes=(--models=cnn --clients=2 --batch_size=2 --k_s=1 --k_u=1 --repeats=1 --augmentation=off)
  methods_sizes=(--methods=semisfl,fedavg:supervised --data=digits --clients=2 --batch_size=2 --k_s=1 --k_u=1 --repeats=1)
  lowerings_models=(cnn)
  legs=(1 2)
  train_sizes=(--config.data.fake=True --config.data.fake_size=400 --config.data.num_labeled=100 --config.k_s=1
    --config.k_u=1 --config.batch_size=2 --config.server_batch_size=2 --config.model.name=small_cnn
    --config.federation.num_clients=4 --config.federation.num_active=2 --config.queue_size=16)
else
  preview_sizes=(--config=configs/cifar10.py)
  lowerings_sizes=(--steps=10 --repeats=5)
  run_sizes=()
  methods_sizes=()
  lowerings_models=(cnn alexnet)
  legs=(100 200 400 700 1000)
  train_sizes=(--config.checkpoint_every=20)
fi
# both sides or this project alone: a PyTorch that does not see the GPU would be compared with it from the CPU
if ! "$PYTHON" -c 'import sys, torch; sys.exit(bool(sys.argv[1]) and not torch.cuda.is_available())' "$GPU" 2> /dev/null; then
  run_sizes+=(--no_torch)
fi

# --- what is run

stage machine 120 machine
stage preview 900 preview
for model in "${lowerings_models[@]}"; do
  for precision in tf32 bfloat16; do
    stage "lowerings-$model-$precision" 900 \
      within "$PYTHON" -m benchmarks.lowerings --model="$model" --precision="$precision" "${lowerings_sizes[@]}"
  done
done
for precision in float32 tf32 bfloat16; do
  stage "run-$precision" 1800 \
    within "$PYTHON" -m benchmarks.run --precision="$precision" --out="$OUT/run-$precision" "${run_sizes[@]}"
done
stage methods 1800 within "$PYTHON" -m benchmarks.methods --out="$OUT/methods" "${methods_sizes[@]}"
stage train "$TRAIN_SECONDS" train
# figures and comparison are those of the rounds that are there, and are made anew when there are more
[ -n "$LIST" ] || rm -f "$OUT"/*-plots.done "$OUT"/*-table2.done
stage plots 600 within "$PYTHON" -m semisfl_jax.plots "$OUT/cifar10" --out="$OUT/cifar10-figures"
stage table2 120 table2
[ -z "$LIST" ] || exit 0

# --- the summary

{
  echo "# ${GPU:-no GPU}"
  [ -z "$QUICK" ] || printf '\n**Sizes were reduced (--quick): these numbers mean nothing.**\n'
  printf '\n'
  for log in "$OUT"/[0-9][0-9]-*.log; do
    tag=$(basename "$log" .log)
    if [ -e "${log%.log}.done" ]; then echo "- $tag: $(cat "${log%.log}.done")"; else echo "- $tag: not done"; fi
  done
  for log in "$OUT"/*-machine.log "$OUT"/*-lowerings-*.log "$OUT"/*-table2.log; do
    [ -e "$log" ] || continue
    printf '\n## %s\n\n' "$(basename "$log" .log)"
    case $log in *-lowerings-*) grep '^|' "$log" || true ;; *) sed 's/^/    /' "$log" ;; esac
  done
  for table in "$OUT"/run-*/table.md "$OUT"/methods/methods.md; do
    [ -e "$table" ] || continue
    printf '\n## %s\n\n' "$(basename "$(dirname "$table")")"
    cat "$table"
  done
} > "$OUT/summary.md"
echo "written to $OUT/summary.md"
[ -z "$unfinished" ] || echo "out of time:$unfinished; the same command goes on"
[ -z "$failed" ] || { echo "failed:$failed; the same command runs them again" >&2; exit 1; }
