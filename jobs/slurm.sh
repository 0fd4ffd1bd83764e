#!/bin/bash
# sbatch jobs/slurm.sh run digits rounds=500 logging.id=first --or-resume
#
# Starts a Ray cluster for the duration of a Slurm job, and one command of raylfl on it. With --or-resume, a requeued job
# continues its run or sweep.
#SBATCH --job-name=raylfl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@180    # three minutes before the limit: end the round, save, free the allocation
#SBATCH --requeue

set -u
export RAYLFL_RUNS="${RAYLFL_RUNS:-$SLURM_SUBMIT_DIR/runs}"    # on a file system that all nodes share
export RAY_AUTH_MODE=token                                     # the token in ~/.ray/auth_token, on a shared home
[ -s ~/.ray/auth_token ] || ray get-auth-token --generate > /dev/null

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head="${nodes[0]}"
port=$((20000 + SLURM_JOB_ID % 10000))                         # different for two jobs on one node
export RAY_ADDRESS="$head:$port"

step=(srun --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_PER_TASK")    # a step has one CPU unless told otherwise
"${step[@]}" -w "$head" \
    ray start --head --port="$port" --num-cpus="$SLURM_CPUS_PER_TASK" --include-dashboard=false --block &
for _ in $(seq 60); do ray status > /dev/null 2>&1 && break; sleep 2; done
for node in "${nodes[@]:1}"; do                                # after the head: they give up after some seconds
    "${step[@]}" -w "$node" ray start --address="$RAY_ADDRESS" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
done
all_there="import ray, sys, time
ray.init(log_to_driver=False, logging_level='error')
while sum(node['Alive'] for node in ray.nodes()) < int(sys.argv[1]): time.sleep(1)"
timeout 120 python -c "$all_there" "${#nodes[@]}" ||      # a run counts the CPUs once, at its start
    echo "some of the ${#nodes[@]} nodes have not joined the cluster within two minutes" >&2

python -m raylfl "$@" &
run=$!
trap 'kill -TERM "$run"' TERM                                  # bash forwards the signal and waits for the checkpoint
wait "$run"; code=$?
while kill -0 "$run" 2> /dev/null; do wait "$run"; code=$?; done
kill $(jobs -p) 2> /dev/null
exit "$code"
