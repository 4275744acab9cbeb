"""The inference node alone, beside the drivers and controllers of your robot."""
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare

# Arguments that, when given, take the place of the parameter of the same name in params_file.
OVERRIDES = {
    'contract': 'YAML file that ties the checkpoint to the robot: cameras, joints, units, limits',
    'checkpoint': 'folder of the checkpoint, "tabletop", or "random:tiny" | "random:small" | "random:pi05"',
    'autostart': '"true": configure and activate by itself; "false": wait for lifecycle transitions',
    'use_sim_time': '"true": take the time from /clock',
}


def start_node(context):
    given = {name: LaunchConfiguration(name).perform(context) for name in OVERRIDES}
    flags = {name: given.pop(name).lower() == 'true' for name in ('autostart', 'use_sim_time') if given[name]}
    overrides = {name: value for name, value in given.items() if isinstance(value, str) and value} | flags
    return [Node(
        package='oxygen_ros', executable='oxygen_node', name='oxygen',
        namespace=LaunchConfiguration('namespace'),
        parameters=[LaunchConfiguration('params_file'), overrides],
        arguments=['--ros-args', '--log-level', LaunchConfiguration('log_level')],
        output='screen', sigterm_timeout='10')]


def generate_launch_description():
    params = PathJoinSubstitution([FindPackageShare('oxygen_ros'), 'config', 'oxygen.yaml'])
    return LaunchDescription([
        DeclareLaunchArgument('params_file', default_value=params, description='YAML file with the parameters'),
        DeclareLaunchArgument('namespace', default_value='oxygen', description='namespace of all topics and services'),
        DeclareLaunchArgument('log_level', default_value='info',
                              description='debug | info | warn | error | fatal'),
        *(DeclareLaunchArgument(name, default_value='', description=f'{what}; empty: as in params_file')
          for name, what in OVERRIDES.items()),
        OpaqueFunction(function=start_node),
    ])
