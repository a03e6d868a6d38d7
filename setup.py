"""Packaging of slurm_recovery. No Slurm is needed to install it."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = (HERE / "slurm_recovery" / "VERSION").read_text().strip()

setup(
    name="slurm_recovery",
    version=VERSION,
    description="Failed Slurm training jobs come back by themselves: cause and node named, node excluded, job requeued",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["slurm_recovery", "slurm_recovery.*"]),
    package_data={
        "slurm_recovery": [
            "VERSION",
            "py.typed",
            "detect/signatures.d/*.toml",
            "hooks/files/*",
            "hooks/spank_hooks/*.c",
            "hooks/spank_hooks/*.h",
            "hooks/spank_hooks/exports.map",
            "hooks/spank_hooks/Makefile",
            "store/migrations/*.py",
            "store/migrations/versions/*.py",
        ]
    },
    install_requires=[
        "pydantic>=2.6,<3",
        "structlog>=24.1",
        "tenacity>=8.2,<10",
        "SQLAlchemy>=2.0.30,<2.2",
        "alembic>=1.13.3,<2",
        "typer>=0.29,<1",
        "rich>=13,<16",
        "ClusterShell>=1.9.2,<2",
        # Where there is no wheel the scanner searches without it: the same answers, a tenth of the speed.
        'hyperscan>=0.7.23,<1; platform_machine=="x86_64" and sys_platform=="linux" and python_version<"3.15"',
    ],
    extras_require={
        # pyslurm must match the Slurm release: see README, "pyslurm".
        "pyslurm": ["pyslurm"],
        "gpu": ["nvidia-ml-py>=12.535"],
        "mariadb": ["PyMySQL>=1.1,<2"],
        "test": [
            "pytest>=8,<10",
            "pytest-xdist>=3.5,<4",
            "hypothesis>=6.100,<7",
            "mypy>=1.10,<3",
            "ruff>=0.5,<1",
            "PyMySQL>=1.1,<2",
            "nvidia-ml-py>=12.535",
        ],
    },
    entry_points={"console_scripts": ["srecover=slurm_recovery.cli.main:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Topic :: System :: Clustering",
    ],
)
